// Numbers, as people read them.

const NOTHING = "–";
const PREFIXES = ["", "k", "M", "G", "T", "P"];

/** Return a number with about three digits: 0.0123, 12.3, 1,230, 12.3 M. */
export function number(value) {
  if (value === null || value === undefined) return NOTHING;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e18) return value.toExponential(2);
  if (size < 1e4) return Number(value.toPrecision(3)).toLocaleString("en");
  return scaled(value, 1000, "");
}

/** Return a whole number with all digits. */
export function count(value) {
  return value === null || value === undefined ? NOTHING : value.toLocaleString("en");
}

/** Return a number of bytes: 12.3 MB. */
export function bytes(value) {
  return value === null || value === undefined ? NOTHING : scaled(value, 1000, "B");
}

/** Return a number of bytes a second. */
export function rate(value) {
  return value === null || value === undefined ? NOTHING : `${bytes(value)}/s`;
}

/** Return a part of a whole: 12.3 %. */
export function percent(value) {
  return value === null || value === undefined ? NOTHING : `${number(100 * value)} %`;
}

/** Return a duration: 1.2 ms, 3.4 s, 2:05 min, 3:04 h, 5 d 3 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  const size = Math.abs(seconds);
  if (size < 1) return `${number(1000 * seconds)} ms`;
  if (size < 60) return `${number(seconds)} s`;
  const whole = Math.floor(size);
  const two = (value) => String(value).padStart(2, "0");
  if (size < 3600) return `${Math.floor(whole / 60)}:${two(whole % 60)} min`;
  if (size < 86400) return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)} h`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

/** Return a moment of the master's clock as a time of day here. */
export function clock(unixTime) {
  return new Date(1000 * unixTime).toLocaleTimeString([], { hour12: false });
}

function scaled(value, base, unit) {
  let shown = value;
  let prefix = 0;
  while (Math.abs(shown) >= base && prefix < PREFIXES.length - 1) {
    shown /= base;
    prefix += 1;
  }
  const digits = Number(shown.toPrecision(3)).toLocaleString("en");
  const suffix = PREFIXES[prefix] + unit;
  return suffix ? `${digits} ${suffix}` : digits;
}
