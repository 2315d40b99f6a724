// Web push to this browser: service worker and subscription.
const bytes = (text) => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (each) => each.charCodeAt(0));

export const isSupported = () => isSecureContext && "serviceWorker" in navigator && "PushManager" in window;

const registration = () => navigator.serviceWorker.getRegistration("/");

export async function subscription() {
  return isSupported() ? (await (await registration())?.pushManager.getSubscription()) ?? null : null;
}

// Return the subscription as JSON; null where the browser blocks notifications.
export async function subscribe(key) {
  if ((await Notification.requestPermission()) !== "granted") return null;
  await navigator.serviceWorker.register("/worker.js", { scope: "/" });
  const { pushManager } = await navigator.serviceWorker.ready;
  const created = await pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: bytes(key) });
  return created.toJSON();
}

export async function unsubscribe() {
  const current = await subscription();
  await current?.unsubscribe();
  return current?.endpoint ?? null;
}
