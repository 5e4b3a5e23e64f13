// Push a message by hand.

import * as api from "../lib/api.js";
import * as dialog from "./dialog.js";
import { field } from "./parts.js";
import { toast } from "./toast.js";

/** Ask for a message and push it; resolves to whether it was. */
export async function pushDialog({ queue = "", partition = "", payload = '{\n  "hello": "world"\n}', title = "Push a message" }) {
  const where = field("Queue", { id: "push-queue", value: queue, required: true });
  const part = field("Partition", { id: "push-partition", value: partition, placeholder: "Default" });
  const key = field("Transaction id", { id: "push-id", hint: "Left empty, the broker makes one. A repeated id is taken once." });
  const body = field("Payload (JSON)", { id: "push-payload", type: "textarea", value: payload });
  const answer = await dialog.form({
    title, action: "Push", wide: true, parts: [where.element, part.element, key.element, body.element],
    act: async () => {
      try { JSON.parse(body.input.value); } catch (error) { throw new Error(`The payload is no JSON: ${error.message}`); }
      // The text itself goes on the wire: numbers keep all their digits.
      const item = { queue: where.input.value, ...(part.input.value && { partition: part.input.value }), ...(key.input.value && { transactionId: key.input.value }) };
      const text = `{"items":[${JSON.stringify(item).slice(0, -1)},"payload":${body.input.value}}]}`;
      const [result] = await api.send("POST", "/api/v1/push", { body: text, type: "application/json" });
      if (result.error) throw new Error(result.error);
      return result;
    },
  });
  if (!answer) return false;
  const id = answer.transaction_id ?? answer.transactionId;
  toast(answer.status === "duplicate" ? `Already there: ${id}` : `Pushed ${id}`);
  return true;
}

