// Web push to this browser: the worker, the browser's subscription, and what the run keeps of it.
const bytes = (text) => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (each) => each.charCodeAt(0));

export const possible = () => isSecureContext && "serviceWorker" in navigator && "PushManager" in window;

const registration = () => navigator.serviceWorker.getRegistration("/");

export async function subscribed() {
  return possible() ? (await (await registration())?.pushManager.getSubscription()) ?? null : null;
}

// Answers what the run must be told, or throws in words.
export async function subscribe(key) {
  if ((await Notification.requestPermission()) !== "granted") throw new Error("the browser does not allow notifications of this page");
  await navigator.serviceWorker.register("/worker.js", { scope: "/" });
  const { pushManager } = await navigator.serviceWorker.ready;
  const made = await pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: bytes(key) });
  return made.toJSON();
}

export async function unsubscribe() {
  const made = await subscribed();
  await made?.unsubscribe();
  return made?.endpoint ?? null;
}
