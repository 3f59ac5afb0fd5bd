"""Sends one message to one target, once. An AlertNotSent says why it did not arrive; whoever sends tries again."""

from __future__ import annotations

import json
import os
import signal
import smtplib
import ssl
import subprocess
from email.message import EmailMessage
from typing import Any

from shardmill.core.console import clean, duration, say
from shardmill.core.errors import AlertNotSent
from shardmill.core.extras import missing_package
from shardmill.watch.alerts.book import CLEARED, AlertMessage
from shardmill.watch.alerts.file import AlertTarget, CommandTarget, EmailTarget, WebhookTarget

_ANSWER_S = 20.0
_COMMAND_S = 60.0
_LONGEST = 300


def send(target: AlertTarget, message: AlertMessage) -> None:
    if isinstance(target, WebhookTarget):
        _post(target, message)
    elif isinstance(target, CommandTarget):
        _run(target, message)
    else:
        _mail(target, message)


def load_libraries(targets: Any) -> None:
    """Import what the targets need, so that what is missing is said at once."""
    if any(isinstance(target, WebhookTarget) for target in targets):
        try:
            import httpx2  # noqa: F401
        except ImportError as error:
            raise missing_package("httpx2", "web") from error


def summarize(message: AlertMessage) -> str:
    """One line. Names and causes may come from data, so they are cleaned and cut."""
    alert = message.alert
    run, text = (_short(each) for each in (alert.run, alert.text))
    if message.event == CLEARED:
        return f"cleared: {run}: {alert.rule}, after {duration(message.at - alert.raised_at)} ({text})"
    return f"{run}: {alert.rule}: {text}"


def _post(target: WebhookTarget, message: AlertMessage) -> None:
    import httpx2

    # Slack reads <…> as a link or as a call to everybody.
    line = summarize(message).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    link = f"<{message.alert.link}|open> · " if message.alert.link else ""
    mark = ":white_check_mark:" if message.event == CLEARED else ":bell:"
    text = f"{mark} {line}\n{link}id {message.alert.id}"
    try:
        answer = httpx2.post(target.read_url(), json={"text": text}, timeout=_ANSWER_S, follow_redirects=False)
    except httpx2.HTTPError as error:
        # The address may be a secret, and errors name it.
        raise AlertNotSent(f"the webhook does not answer ({type(error).__name__})") from None
    if not answer.is_success:
        raise AlertNotSent(f"the webhook refused it with status {answer.status_code}: {_short(answer.text)}")


def _run(target: CommandTarget, message: AlertMessage) -> None:
    try:
        process = subprocess.Popen(
            target.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise AlertNotSent(f"{target.command[0]} does not start ({error.strerror})") from error
    try:
        _, said = process.communicate(json.dumps(message.to_json()).encode(), timeout=_COMMAND_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise AlertNotSent(f"{target.command[0]} did not end within {duration(_COMMAND_S)}") from None
    if process.returncode:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise AlertNotSent(f"{target.command[0]} ended with status {process.returncode} ({_short(last)})")


def _mail(target: EmailTarget, message: AlertMessage) -> None:
    alert = message.alert
    mail = EmailMessage()
    mail["Subject"] = f"[shardmill] {summarize(message)}"
    mail["From"], mail["To"] = target.sender, ", ".join(target.to)
    # The same message has the same id when it is sent again, so that readers see it once.
    mail["Message-ID"] = f"<{alert.id}.{message.event}@shardmill.invalid>"
    if message.event == CLEARED:
        mail["In-Reply-To"] = f"<{alert.id}.raised@shardmill.invalid>"
    mail.set_content("\n".join([summarize(message), "", *([alert.link] if alert.link else []), f"id {alert.id}", ""]))
    secure = ssl.create_default_context() if target.security != "none" else None
    try:
        if target.security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(target.host, target.port, timeout=_ANSWER_S, context=secure)
        else:
            server = smtplib.SMTP(target.host, target.port, timeout=_ANSWER_S)
        with server:
            if target.security == "starttls":
                server.starttls(context=secure)
            if target.user:
                server.login(target.user, os.environ[target.password_variable])
            refused = server.send_message(mail)
    except (smtplib.SMTPException, OSError) as error:
        # The server's words may repeat what it was sent, a password among it.
        said = f"{type(error).__name__} {getattr(error, 'smtp_code', '')}".strip()
        raise AlertNotSent(f"{target.host} does not take the mail ({said})") from None
    if refused:
        # Sent again, it would reach the others twice.
        say(f"alerts: {target.host} refused {', '.join(refused)}.")


def _short(text: str) -> str:
    return clean(" ".join(text.split()))[:_LONGEST]
