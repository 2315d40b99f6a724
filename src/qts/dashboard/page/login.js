// The token comes after the # of the link, which browsers do not send, or from the input field.
const message = document.getElementById("message");
const field = document.getElementById("token");

async function login(text) {
  const token = text.slice(text.indexOf("#") + 1).trim(); // of a token, or of a whole link
  try {
    const reply = await fetch("/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token }),
    });
    if (reply.ok) {
      location.replace("/");
      return;
    }
    message.textContent = (await reply.json()).error;
  } catch {
    message.textContent = "no connection to QTS";
  }
  message.className = "bad";
}

async function followLink() {
  const token = location.hash.slice(1);
  if (!token) return;
  history.replaceState(null, "", "/login");
  await login(token);
}

document.getElementById("enter").addEventListener("click", () => login(field.value));
field.addEventListener("keydown", (event) => {
  if (event.key === "Enter") login(field.value);
});
window.addEventListener("hashchange", followLink); // a link pasted on this page changes only its #
await followLink();
