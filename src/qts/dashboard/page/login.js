// The token comes behind the # of the link, which no server ever sees, or by hand.
const said = document.getElementById("said");
const field = document.getElementById("token");

async function enter(token) {
  const reply = await fetch("/login", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ token }),
  });
  if (reply.ok) {
    location.replace("/");
    return;
  }
  said.textContent = (await reply.json()).error;
  said.className = "bad";
}

document.getElementById("enter").addEventListener("click", () => enter(field.value.trim()));
field.addEventListener("keydown", (pressed) => {
  if (pressed.key === "Enter") enter(field.value.trim());
});

const given = location.hash.slice(1);
if (given) {
  history.replaceState(null, "", "/login");
  await enter(given);
}
