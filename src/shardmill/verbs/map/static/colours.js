// Colours: evenly spaced as the eye sees them (OKLCH), on light and on dark ground.

const GROUND = { light: [250, 250, 248], dark: [15, 19, 23] };

function oklch(lightness, chroma, degrees) {
  const a = chroma * Math.cos((degrees * Math.PI) / 180);
  const b = chroma * Math.sin((degrees * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((v) => {
    const c = clamp(v, 0, 1);
    return Math.round(255 * (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055));
  });
}

const css = (rgb) => `rgb(${rgb[0]} ${rgb[1]} ${rgb[2]})`;
const nothing = (theme) => (theme === "dark" ? [86, 96, 104] : [186, 192, 196]);
const others = (theme) => (theme === "dark" ? [128, 138, 146] : [140, 148, 153]);

/** 256 colours, one per code, from a function of the code. */
function palette(theme, of) {
  const colours = new Uint8Array(256 * 4).fill(255);
  for (let code = 0; code < 256; code += 1) {
    const rgb = code === NULL ? nothing(theme) : code === OTHER ? others(theme) : of(code);
    colours.set(rgb, 4 * code);
  }
  return colours;
}

/** From few to many: what stands out on the ground is much. */
function rampPalette(theme) {
  return palette(theme, (code) => {
    const t = code / LAST_CODE;
    return theme === "dark"
      ? oklch(0.42 + 0.5 * t, 0.1 + 0.05 * Math.sin(Math.PI * t), 285 - 195 * t)
      : oklch(0.86 - 0.5 * t, 0.1 + 0.05 * Math.sin(Math.PI * t), 100 + 185 * t);
  });
}

// Hues in an order in which neighbours in a legend differ.
const HUES = [250, 45, 145, 355, 95, 300, 195, 20, 120, 275, 70, 330, 170, 225];

function categoryPalette(theme) {
  const base = theme === "dark" ? 0.74 : 0.62;
  return palette(theme, (code) => {
    const round = Math.floor(code / HUES.length);
    const hue = HUES[code % HUES.length] + 11 * round;
    return oklch(base + [0, -0.11, 0.08][round % 3], 0.14 - 0.03 * (round % 2), hue);
  });
}

/** Clusters side by side on the map have neighbouring hues, and differ in lightness. */
function clusterPalette(theme, clusters) {
  const base = theme === "dark" ? 0.75 : 0.63;
  const angles = clusters.map((c, i) => [Math.atan2(c.py - 0.5, c.px - 0.5), i]).sort((a, b) => a[0] - b[0]);
  const colours = [];
  angles.forEach(([, i], rank) => {
    colours[i] = oklch(base + [0, 0.07, -0.08][rank % 3], 0.135 - 0.02 * (rank % 2), (360 * rank) / angles.length + 20);
  });
  return palette(theme, (code) => colours[code % Math.max(1, colours.length)] || nothing(theme));
}
