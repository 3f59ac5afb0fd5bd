// Points on a canvas by WebGL 2: a sample of them while the view moves, all of them when it rests.

const VERTEX = `#version 300 es
uniform vec2 centre;
uniform vec2 scale;
uniform float size;
uniform float pale;
uniform vec3 ground;
uniform highp sampler2D colours;
in vec2 place;
in float code;
in float shown;
flat out vec3 colour;
void main() {
  vec2 at = (vec2(place.x, 1.0 - place.y) - centre) * scale;
  gl_Position = shown > 0.5 ? vec4(at, 0.0, 1.0) : vec4(2.0, 2.0, 2.0, 1.0);
  gl_PointSize = size;
  colour = mix(texelFetch(colours, ivec2(int(code + 0.5), 0), 0).rgb, ground, pale);
}`;

const FRAGMENT = `#version 300 es
precision highp float;
uniform float alpha;
uniform float size;
flat in vec3 colour;
out vec4 drawn;
void main() {
  float a = alpha;
  if (size > 2.5) a *= clamp((1.0 - 2.0 * length(gl_PointCoord - 0.5)) * size * 0.5 + 0.5, 0.0, 1.0);
  drawn = vec4(colour * a, a);
}`;

/** Every `step`-th point, wrapping around: the first thousand are a fair sample of all. */
function strides(n) {
  const common = (a, b) => (b ? common(b, a % b) : a);
  let step = Math.max(1, Math.round(n * 0.6180339887));
  while (common(step, n) !== 1) step += 1;
  return step;
}

/** Values of one or two arrays in the order of the strides. */
function strewn(n, into, ...arrays) {
  const step = strides(n);
  for (let slot = 0, i = 0; slot < n; slot += 1) {
    for (let a = 0; a < arrays.length; a += 1) into[slot * arrays.length + a] = arrays[a][i];
    i += step;
    if (i >= n) i -= n;
  }
  return into;
}

/** How large and how opaque points are, so that neither few nor many points cover or lose the shape. */
function strokes(view, n, drawn, moving) {
  const zoom = view.k / view.fit();
  let radius = clamp(2.9 - 0.42 * Math.log10(Math.max(1, n / 500)), 0.75, 2.9) * clamp(zoom ** 0.4, 0.8, 5);
  const covered = (n * Math.PI * radius ** 2) / (0.2 * view.fit() ** 2 * Math.max(0.25, zoom ** 1.5));
  let alpha = clamp(0.95 / Math.max(1, covered) ** 0.42, 0.16, 0.85);
  if (moving && drawn < n) {
    radius *= Math.min(1.7, (n / drawn) ** 0.2);
    alpha = Math.min(0.85, alpha * (n / drawn) ** 0.4);
  }
  return { radius, alpha };
}

const markedRadius = (view, n) => clamp(1.15 * strokes(view, n, n, false).radius, 1.6, 8);
// How far points that are not meant turn into the ground.
const PALE = 0.78;

class GlPainter {
  constructor(canvas, points) {
    const gl = canvas.getContext("webgl2", { alpha: false, antialias: false, powerPreference: "high-performance" });
    if (!gl) throw new Error("no WebGL 2");
    Object.assign(this, { gl, canvas, points, name: "WebGL" });
    this.program = this.link();
    gl.useProgram(this.program);
    this.at = (name) => gl.getUniformLocation(this.program, name);
    this.uniforms = Object.fromEntries(
      ["centre", "scale", "size", "alpha", "pale", "ground", "colours"].map((name) => [name, this.at(name)]),
    );
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.texture = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, this.texture);
    for (const filter of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) {
      gl.texParameteri(gl.TEXTURE_2D, filter, gl.NEAREST);
    }
    const n = points.count;
    this.all = this.vertices(strewn(n, new Uint16Array(2 * n), points.x, points.y));
    this.few = this.vertices(new Uint16Array(0));
    this.fewCount = 0;
    this.frame = gl.createFramebuffer();
    this.pixels = gl.createRenderbuffer();
    this.ground = GROUND.light;
    this.setShown();
  }

  link() {
    const { gl } = this;
    const program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
    return program;
  }

  /** Buffers of points: places, codes and whether they are shown. */
  vertices(places) {
    const { gl } = this;
    const array = gl.createVertexArray();
    gl.bindVertexArray(array);
    const buffers = {};
    for (const [name, size, type, normal] of [
      ["place", 2, gl.UNSIGNED_SHORT, true],
      ["code", 1, gl.UNSIGNED_BYTE, false],
      ["shown", 1, gl.UNSIGNED_BYTE, true],
    ]) {
      buffers[name] = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, buffers[name]);
      const where = gl.getAttribLocation(this.program, name);
      gl.enableVertexAttribArray(where);
      gl.vertexAttribPointer(where, size, type, normal, 0, 0);
    }
    this.fill(buffers.place, places);
    return { array, buffers };
  }

  fill(buffer, data) {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, buffer);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, data, this.gl.DYNAMIC_DRAW);
  }

  setCodes(codes) {
    this.codes = codes;
    const n = this.points.count;
    this.fill(this.all.buffers.code, strewn(n, new Uint8Array(n), codes));
    if (this.marked) this.setMarked(this.marked);
  }

  setShown() {
    const n = this.points.count;
    this.fill(this.all.buffers.shown, strewn(n, new Uint8Array(n), this.points.shown));
  }

  setColours(colours, ground) {
    const { gl } = this;
    this.ground = ground;
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, 256, 1, 0, gl.RGBA, gl.UNSIGNED_BYTE, colours);
  }

  /** Points that stand out; the others turn pale. */
  setMarked(marked) {
    this.marked = marked;
    this.fewCount = 0;
    if (!marked) return;
    const { x, y, shown } = this.points;
    const found = marked.filter((i) => shown[i]);
    const places = new Uint16Array(2 * found.length);
    const codes = new Uint8Array(found.length);
    found.forEach((i, at) => {
      places[2 * at] = x[i];
      places[2 * at + 1] = y[i];
      codes[at] = this.codes[i];
    });
    this.fill(this.few.buffers.place, places);
    this.fill(this.few.buffers.code, codes);
    this.fill(this.few.buffers.shown, new Uint8Array(found.length).fill(255));
    this.fewCount = found.length;
  }

  resize(width, height) {
    const { gl } = this;
    this.canvas.width = width;
    this.canvas.height = height;
    gl.bindRenderbuffer(gl.RENDERBUFFER, this.pixels);
    gl.renderbufferStorage(gl.RENDERBUFFER, gl.RGBA8, width, height);
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.frame);
    gl.framebufferRenderbuffer(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.RENDERBUFFER, this.pixels);
    gl.viewport(0, 0, width, height);
  }

  clear() {
    const [r, g, b] = this.ground;
    this.gl.clearColor(r / 255, g / 255, b / 255, 1);
    this.gl.clear(this.gl.COLOR_BUFFER_BIT);
  }

  draw(view, from, to, moving) {
    const { gl, uniforms } = this;
    const ratio = this.canvas.width / view.width;
    const { radius, alpha } = strokes(view, this.points.shownCount, to - from, moving);
    gl.uniform2f(uniforms.centre, view.x, view.y);
    gl.uniform2f(uniforms.scale, (2 * view.k) / view.width, (-2 * view.k) / view.height);
    gl.uniform3f(uniforms.ground, ...this.ground.map((c) => c / 255));
    gl.uniform1f(uniforms.size, 2 * radius * ratio);
    gl.uniform1f(uniforms.alpha, this.marked ? 0.6 * alpha : alpha);
    gl.uniform1f(uniforms.pale, this.marked ? PALE : 0);
    gl.bindVertexArray(this.all.array);
    gl.drawArrays(gl.POINTS, from, to - from);
  }

  drawMarked(view, most) {
    if (!this.fewCount) return;
    const { gl, uniforms } = this;
    gl.uniform1f(uniforms.size, 2 * markedRadius(view, this.fewCount) * (this.canvas.width / view.width));
    gl.uniform1f(uniforms.alpha, 0.9);
    gl.uniform1f(uniforms.pale, 0);
    gl.bindVertexArray(this.few.array);
    gl.drawArrays(gl.POINTS, 0, Math.min(most, this.fewCount));
  }

  /** One picture of the first `most` points. */
  sketch(view, most) {
    this.gl.bindFramebuffer(this.gl.FRAMEBUFFER, null);
    this.clear();
    this.draw(view, 0, Math.min(most, this.points.count), true);
    this.drawMarked(view, most);
    this.done = most >= this.points.count && most >= this.fewCount ? this.points.count : 0;
  }

  /** Add points to a picture that is shown when it has all of them; true then. */
  refine(view, most) {
    const { gl, points } = this;
    if (this.done >= points.count) return true;
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.frame);
    if (!this.done) this.clear();
    const to = Math.min(points.count, this.done + most);
    this.draw(view, this.done, to, false);
    this.done = to;
    if (to < points.count) return false;
    this.drawMarked(view, this.fewCount);
    gl.bindFramebuffer(gl.READ_FRAMEBUFFER, this.frame);
    gl.bindFramebuffer(gl.DRAW_FRAMEBUFFER, null);
    const [w, h] = [this.canvas.width, this.canvas.height];
    gl.blitFramebuffer(0, 0, w, h, 0, 0, w, h, gl.COLOR_BUFFER_BIT, gl.NEAREST);
    return true;
  }
}
