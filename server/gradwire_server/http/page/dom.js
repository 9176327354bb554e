// Elements. Text from the master is always set as text: a name may look like HTML.

/** Return an element: its properties, attributes (aria-..., data-..., role, class) and children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && !name.includes("-")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Return the element with an id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Set a text, if it is another one: a screen reader repeats what is set again. */
export function setText(of, text) {
  if (of.textContent !== text) of.textContent = text;
}

/** Show or hide an element. */
export function show(of, visible) {
  if (of.hidden === visible) of.hidden = !visible;
}

/** Have a parent's children be those of a list of [key, value]: made, changed, put in order. */
export function reconcile(parent, entries, make, change) {
  const kept = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const [key, value] of entries) {
    const name = String(key);
    let child = kept.get(name);
    if (child === undefined) {
      child = make(value);
      child.dataset.key = name;
    }
    kept.delete(name);
    change(child, value);
    const place = before === null ? parent.firstChild : before.nextSibling;
    if (place !== child) parent.insertBefore(child, place);
    before = child;
  }
  for (const child of kept.values()) child.remove();
}
