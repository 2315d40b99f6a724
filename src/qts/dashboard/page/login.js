// The token comes after the # of the link, which browsers do not send, or from the input field.
const message = document.getElementById("message");
const field = document.getElementById("token");

async function login(token) {
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
  message.className = "bad";
}

document.getElementById("enter").addEventListener("click", () => login(field.value.trim()));
field.addEventListener("keydown", (event) => {
  if (event.key === "Enter") login(field.value.trim());
});

const token = location.hash.slice(1);
if (token) {
  history.replaceState(null, "", "/login");
  await login(token);
}
