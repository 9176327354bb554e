// Numbers, as people read them. What is not there is a dash.

const PREFIXES = ["", "k", "M", "G", "T", "P"];
const THREE_DIGITS = { maximumSignificantDigits: 3 };

const orDash = (shown) => (value) => (value === null || value === undefined ? "–" : shown(value));

/** Return a number with about three digits: 0.0123, 12.3, 1,230, 12.3 M. */
export const number = orDash((value) => {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e18) return value.toExponential(2).replace(/\.?0+e/, "e");
  if (size < 1e4) return value.toLocaleString("en", THREE_DIGITS);
  return scaled(value, "");
});

/** Return a whole number with all digits. */
export const count = orDash((value) => value.toLocaleString("en"));

/** Return a number of bytes: 12.3 MB. */
export const bytes = orDash((value) => scaled(value, "B"));

/** Return a number of bytes a second. */
export const rate = orDash((value) => `${bytes(value)}/s`);

/** Return a part of a whole: 12.3 %. */
export const percent = orDash((value) => `${number(100 * value)} %`);

/** Return a duration: 1.2 ms, 3.4 s, 2:05 min, 3:04 h, 5 d 3 h. */
export const duration = orDash((seconds) => {
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 1) return `${number(1000 * seconds)} ms`;
  if (size < 60) return `${number(seconds)} s`;
  const whole = Math.floor(size);
  const two = (value) => String(value).padStart(2, "0");
  if (size < 3600) return `${Math.floor(whole / 60)}:${two(whole % 60)} min`;
  if (size < 86400) return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)} h`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
});

/** Return a moment of the master's clock as a time of day here. */
export function clock(unixTime) {
  return new Date(1000 * unixTime).toLocaleTimeString([], { hour12: false });
}

/** Return such a moment as a day and a time of day here. */
export function moment(unixTime) {
  return new Date(1000 * unixTime).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });
}

function scaled(value, unit) {
  let [shown, prefix] = [value, 0];
  while (Math.abs(shown) >= 1000 && prefix < PREFIXES.length - 1) {
    shown /= 1000;
    prefix += 1;
  }
  const digits = shown.toLocaleString("en", THREE_DIGITS);
  const suffix = PREFIXES[prefix] + unit;
  return suffix ? `${digits} ${suffix}` : digits;
}
