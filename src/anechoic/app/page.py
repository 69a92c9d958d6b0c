"""The page: its fields, what it shows, and the server on this machine that it comes from."""

from __future__ import annotations

import socket
import time
from html import escape
from multiprocessing.process import BaseProcess, active_children
from typing import Any, get_args

from anechoic.app.plan_form import PlanForm
from anechoic.app.plan_worker import PlanWorker
from anechoic.planning.update import ScheduleName
from anechoic.planning.user_choices import SCHEMES
from anechoic.statement.page import style

_CSS = """
.q-page{max-width:none;padding:0}.nicegui-content{padding:0}
.app{display:grid;grid-template-columns:minmax(270px,330px) minmax(0,1fr);gap:12px 40px;width:100%;
max-width:1440px;margin:0 auto;padding:24px;align-items:start}
.app h1{grid-column:1/-1;margin:0;font-size:26px}.app h2{margin:30px 0 8px;font-size:19px;font-weight:650}
.app fieldset{border:0;padding:0;margin:0 0 10px;min-width:0}
.app legend{font-weight:650;margin:0 0 6px;padding:0}
.app .q-field{width:100%;padding-bottom:24px}.app .q-radio{margin:0 14px 8px 0}
.app .q-field__bottom{padding-top:4px;line-height:1.25}
.app .said{display:flex;flex-wrap:wrap;align-items:center;gap:10px;min-height:44px}
.app .wrong{color:var(--wrong);font-weight:600;overflow-wrap:anywhere}
.app .results>*{width:100%;min-width:0}.app .stale{opacity:.4}
.app .acts{display:flex;flex-wrap:wrap;gap:10px;margin:18px 0}
:root{--wrong:#b3261e}@media(prefers-color-scheme:dark){:root{--wrong:#ffb4ab}}
body{--q-primary:var(--link)!important;--q-negative:var(--wrong)!important}
.body--dark .q-field--error .q-field__label{color:var(--wrong)}
@media(max-width:820px){.app{grid-template-columns:minmax(0,1fr);padding:16px}.app h1{font-size:23px}}
@media(min-width:560px)and (max-width:820px){.app form{display:grid;grid-template-columns:1fr 1fr;gap:0 24px}}
"""
_SAMPLINGS = ("any", *SCHEMES)
_CHOICES = {
    "order": {"passes": "Passes", "time": "Time order"},
    "sampling": {name: name.replace("_", " ").capitalize() for name in _SAMPLINGS},
    "optimizer": {"sgd": "SGD", "adam": "Adam"},
    "schedule": {name: name.capitalize() for name in get_args(ScheduleName)},
    "keep": {"last": "The last model", "average": "A mean of the last half", "all": "Every model"},
}
#: Name, label and hint of the fields; a name alone begins a group.
_FORM = (
    ("Data",),
    ("examples", "Examples N", ""),
    ("order", "How the data is used", ""),
    ("batch_size", "Batch size B", "Several, with spaces between them, are compared."),
    ("epochs", "Passes over the data", "Several are compared too."),
    ("sampling", "Sampling of batches", ""),
    ("min_sep", "Steps between two records of a unit", "Empty: a unit has one record."),
    ("max_participations", "Most records of a unit", "Empty: as many as fit."),
    ("Guarantee",),
    ("epsilon", "ε", ""),
    ("delta", "δ", ""),
    ("Training",),
    ("optimizer", "Optimizer", ""),
    ("momentum", "Momentum", ""),
    ("schedule", "Learning rate", ""),
    ("keep", "What is kept", ""),
    ("Memory",),
    ("dimension", "Trainable parameters", ""),
    ("memory_budget", "Budget of the noise", 'Such as "2GB". Empty: 4 models or 64 MiB.'),
)
#: Fields that are shown where another one has a value.
_ONLY = {
    ("order", "passes"): ("epochs", "sampling"),
    ("order", "time"): ("min_sep", "max_participations"),
    ("optimizer", "sgd"): ("momentum",),
}
#: Part of an answer that is a file, its name, and what its button says.
_FILES = {
    "statement.txt": ("privacy-statement.txt", "Download statement (text)"),
    "statement.json": ("privacy-statement.json", "Download statement (JSON)"),
    "mechanism": ("mechanism.json", "Download mechanism"),
}


class Page:
    """One tab: the fields, and the answer to what stands in them."""

    def __init__(self) -> None:
        from nicegui import ui

        self.ui, self.worker, self.known = ui, PlanWorker(), dict[str, str]()
        self.doing, self.since = "", 0.0
        ui.context.client.on_delete(self.worker.close)
        ui.add_css(style() + _CSS)
        with ui.element("div").classes("app"):
            ui.html("Plan private training", tag="h1", sanitize=False)
            with ui.element("form").props('aria-label="Your question" onsubmit="return false"'):
                self.fields = self._form()
            with ui.element("section").props('aria-label="Answer"'):
                self._answer()
        ui.timer(0.5, self._tick)
        ui.timer(0.01, self.ask, once=True)

    def _form(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, *about in _FORM:
            if not about:
                group = self.ui.element("fieldset")
            with group:
                if about:
                    fields[name] = self._field(name, *about)
                else:
                    self.ui.html(name, tag="legend", sanitize=False)
        for (other, value), names in _ONLY.items():
            for name in names:
                fields[name].bind_visibility_from(fields[other], "value", value=value)
        return fields

    def _field(self, name: str, label: str, hint: str) -> Any:
        value = getattr(PlanForm, name)
        if name in ("order", "optimizer"):
            field = self.ui.radio(_CHOICES[name], value=value, on_change=self.ask)
            return field.props(f'inline dense data-name={name} aria-label="{label}"')
        if name in _CHOICES:
            field = self.ui.select(_CHOICES[name], label=label, value=value, on_change=self.ask)
        else:
            field = self.ui.input(label, value=value, on_change=self.ask).props("debounce=350")
            field.props["hint"] = hint or None
        return field.props(f"outlined dense options-dense autocomplete=off data-name={name}")

    def _answer(self) -> None:
        ui = self.ui
        with ui.element("div").classes("said"):
            self.busy = ui.spinner(size="22px")
            self.said = ui.label().props("role=status aria-live=polite")
            self.stop = ui.button("Cancel", on_click=self.cancel).props("flat dense no-caps")
        self.wrong = ui.label().classes("wrong").props("role=alert")
        self.results = ui.element("div").classes("results")
        with self.results:
            self.shown = {"facts": ui.html("", sanitize=False)}
            with ui.element("div").classes("acts"):
                self.buttons = {"code": ui.button("Copy as Python", on_click=self._copy)}
                for part, (_, words) in _FILES.items():
                    self.buttons[part] = ui.button(words, on_click=lambda part=part: self._save(part))
                for button in self.buttons.values():
                    button.props("no-caps outline")
            for part in ("table", "pictures", "code"):
                self.shown[part] = ui.html("", sanitize=False)

    async def ask(self) -> None:
        """Answer what stands in the fields, part by part, unless something else is asked meanwhile."""
        question = PlanForm(**{name: str(field.value or "") for name, field in self.fields.items()})
        self.doing, self.since = "Starting", time.monotonic()
        self.wrong.set_text("")
        for field in self.fields.values():
            field.error = None
            field.props(remove="aria-invalid")
        self.results.classes("stale")
        self.busy.set_visibility(True)
        self.stop.set_visibility(True)
        async for name, text in self.worker.ask(question):
            if name == "doing":
                self.doing = text
                self._tick()
            elif name == "done":
                self._rest(f"Computed in {time.monotonic() - self.since:.1f} s.")
            elif name.startswith("error"):
                self._refuse(self.fields.get(name.partition(" ")[2]), text)
            else:
                if name == "facts":
                    self._clear()
                self._show(name, text)

    def cancel(self) -> None:
        """End the computation."""
        self.worker.cancel()
        self._clear()
        self._rest("Cancelled. Change a field to compute again.")

    def _tick(self) -> None:
        if self.doing:
            self.said.set_text(f"{self.doing} … {time.monotonic() - self.since:.0f} s")

    def _rest(self, text: str) -> None:
        self.doing = ""
        self.said.set_text(text)
        self.busy.set_visibility(False)
        self.stop.set_visibility(False)

    def _refuse(self, field: Any, text: str) -> None:
        self._clear()
        self._rest("Nothing is computed.")
        if field is not None and field.visible:
            field.error = text
            field.props("aria-invalid=true")  # of which Quasar tells the eye alone
        else:
            self.wrong.set_text(text)

    def _clear(self) -> None:
        self.known.clear()
        self.results.classes(remove="stale").set_visibility(False)
        for element in self.shown.values():
            element.set_content("")
        for button in self.buttons.values():
            button.disable()

    def _show(self, name: str, text: str) -> None:
        self.known[name] = text
        self.results.set_visibility(True)
        if name in self.buttons:
            self.buttons[name].enable()
        if name == "code":
            text = f"<h2>As Python</h2><pre tabindex=0><code>{escape(text)}</code></pre>"
        if name in self.shown:
            self.shown[name].set_content(text.replace("<div class=scroll>", "<div class=scroll tabindex=0>"))

    def _copy(self) -> None:
        self.ui.clipboard.write(self.known["code"])
        self.ui.notify("Copied.")

    def _save(self, part: str) -> None:
        self.ui.download.content(self.known[part], _FILES[part][0])


def serve(port: int = 8080, *, show: bool = True) -> None:
    """Serve the page to this machine until Ctrl-C; nothing is sent elsewhere, and nothing is stored.

    Args:
        port: of 127.0.0.1, where alone it listens.
        show: whether a browser is opened.

    Raises:
        ValueError: for a port that is none, or that something else listens on.
    """
    try:
        if not 0 < port < 2**16:
            raise OSError("ports are 1 to 65535")
        with socket.create_server(("127.0.0.1", port)):
            pass
    except OSError as error:
        raise ValueError(
            f"port={port} cannot be listened on ({error}): take a free one, from 1024 on."
        ) from error
    from nicegui import app, ui
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    app.on_startup(lambda: print(f"http://127.0.0.1:{port} (Ctrl-C ends it)", flush=True))
    # another site's page must not reach it under a name of its own that leads to this machine
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    app.on_shutdown(lambda: [*map(BaseProcess.kill, active_children())])  # else Ctrl-C waits for them
    own = {"title": "anechoic: plan private training", "favicon": "data:,", "language": "en-US", "dark": None}
    quiet = {"reload": False, "tailwind": False, "show_welcome_message": False}
    ui.run(Page, host="127.0.0.1", port=port, show=show, **own, **quiet)
