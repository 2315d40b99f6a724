// The confirmation of an action, and the short message after it.
import { h } from "./dom.js";
import { t } from "./labels.js";
import { account } from "./state.js";

let hideTimer;
export function showToast(text, kind = "", ms = 6000) {
  const toast = document.getElementById("toast");
  toast.textContent = text;
  toast.className = `shown ${kind}`;
  clearTimeout(hideTimer);
  hideTimer = setTimeout(() => (toast.className = ""), ms);
}

// Ask before an action: `title` names it, `lines` say what it will do, `kind` colours its button. Enter confirms.
// A reason may be left out unless it is `required`. Return {reason, more}, or null if it was cancelled.
export function confirmAction({ title, lines, kind, reason = true, required = true, more = "" }) {
  const dialog = document.getElementById("confirm");
  const field = reason && h("input", { id: "reason", placeholder: t("reason"), "aria-label": t("reason"), maxlength: 500, required, autocomplete: "off" });
  const check = more && h("input", { type: "checkbox", id: "more" });
  const form = h("form", { method: "dialog" },
    h("h2", { id: "confirm-title" }, title),
    account && h("p", { class: "warn" }, t("on_account").replace("{}", account)),
    lines.map((line) => h("p", {}, line)),
    field, check && h("label", { class: "check" }, check, more),
    h("div", { class: "buttons" }, h("button", { id: "no", type: "button" }, t("cancel")), h("button", { id: "yes", class: kind }, title)));
  dialog.replaceChildren(form);
  dialog.setAttribute("aria-labelledby", "confirm-title");
  dialog.showModal();
  (field || document.getElementById("no")).focus();
  return new Promise((resolve) => {
    const close = (answer) => { dialog.close(); resolve(answer); };
    dialog.oncancel = () => resolve(null);
    document.getElementById("no").onclick = () => close(null);
    form.onsubmit = (event) => {
      event.preventDefault();
      const text = field ? field.value.trim() : "";
      if (field && required && !text) return field.focus();
      close({ reason: text, more: check ? check.checked : false });
    };
  });
}
