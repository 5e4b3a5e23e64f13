// Names to choose from while somebody types: a field with suggestions by the broker.

import { fill, make } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { calm, field } from "./parts.js";

/** A field that suggests names of a kind: "queue", "group", "partition". */
export function nameField(label, kind, { id, value = "", changed, belongs = () => true }) {
  const options = make("datalist", { id: `${id}-names` });
  const suggest = calm(async (text) => {
    if (!text) { fill(options); return; }
    const found = await api.get(`/api/v1/search?q=${encodeURIComponent(text)}&limit=20`).catch(() => ({ results: [] }));
    const names = found.results.filter((each) => each.kind === kind && belongs(each)).map((each) => each.name);
    fill(options, [...new Set(names)].map((name) => make("option", { value: name })));
  }, 150);
  const tell = calm(changed, 350);
  const { element, input } = field(label, { id, value, list: `${id}-names`, oninput: () => { suggest(input.value); tell(input.value); } });
  element.append(options);
  return { element, input };
}
