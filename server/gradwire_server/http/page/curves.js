// What is reckoned with curves: their horizontal axes, smoothing, and where a moment lies on them.

/** How many bytes a run has received in updates, up to each moment: a curve of their rate, added up. */
export function bytesUpTo(rate) {
  let [sum, last] = [0, rate.seconds[0] - rate.steps];
  const bytes = rate.mean.map((value, at) => {
    sum += (value ?? 0) * Math.max(rate.seconds[at] - last, 0);
    last = rate.seconds[at];
    return sum;
  });
  return { seconds: rate.seconds, bytes };
}

/** Return the horizontal places of a curve's points; `total` is what `bytesUpTo` returned, or null. */
export function places(curve, axis, total) {
  if (axis === "steps") return curve.step;
  // Seconds of a bucket are those of its last scalar: never less than those of the one before.
  let last = -Infinity;
  const seconds = curve.seconds.map((value) => (last = Math.max(last, value ?? last)));
  if (axis === "seconds") return seconds;
  return seconds.map((value) => between(total?.seconds ?? [], total?.bytes ?? [], value));
}

/** Return where a moment is on an axis, by a curve that has it. */
export function placeOf(seconds, curve, axis, total) {
  if (axis === "seconds") return seconds;
  if (axis === "bytes") return between(total?.seconds ?? [], total?.bytes ?? [], seconds);
  return between(curve.seconds, curve.step, seconds);
}

/** Return the exponential moving mean of values, without the weight of what came before the first. */
export function smoothed(values, factor) {
  if (factor === 0) return values;
  let [sum, weight] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = factor * sum + (1 - factor) * value;
    weight = factor * weight + 1 - factor;
    return sum / weight;
  });
}

/** Return values as a logarithmic scale can show them. */
export function positive(values) {
  return values.map((value) => (value > 0 ? value : null));
}

/** Return the index of the last sorted value that is not above one; 0 if all are. */
export function lastUpTo(sorted, value) {
  return Math.max(below(sorted, value), 0);
}

/** Return a range that is never empty, with some room above and below. */
export function rangeOf(low, high) {
  if (low === null || high === null) return [0, 1];
  const room = low === high ? Math.max(Math.abs(low) * 0.1, 1e-9) : 0.05 * (high - low);
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

function below(sorted, value) {
  let [low, high] = [-1, sorted.length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle;
    else high = middle;
  }
  return low;
}

/** Return the value at a place, between those of its neighbours. */
function between(from, to, place) {
  if (from.length === 0) return 0;
  const at = below(from, place);
  if (at < 0) return to[0];
  if (at + 1 >= from.length) return to[at];
  const part = from[at + 1] > from[at] ? (place - from[at]) / (from[at + 1] - from[at]) : 0;
  return to[at] + part * (to[at + 1] - to[at]);
}
