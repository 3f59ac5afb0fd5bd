// A dashboard as Grafana's own types have it. The JSON takes the place of BOARD, as a literal: of one, unknown keys are
// errors too.

import type { Dashboard, Panel } from "@grafana/schema";
import type * as stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as lines from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

type Scalar = number | boolean | null | undefined;
/** In JSON, the member of an enumeration is its value. */
type Plain<T> = T extends string ? `${T}`
  : T extends Scalar ? T
  : T extends (infer E)[] ? Plain<E>[]
  : unknown extends T ? T
  : { [K in keyof T]: Plain<T[K]> };
/** What has a default may be left out. */
type Optional<T> = { [K in keyof T]?: T[K] extends object ? Optional<T[K]> : T[K] };

type Fields = NonNullable<Panel["fieldConfig"]>;
/** The types of Prometheus' queries are not among those that Grafana publishes. */
type Query = { refId: string; datasource: { type: "prometheus"; uid: string }; expr: string; legendFormat: string };
type Drawn<Type, Options, Custom> = Omit<Plain<Panel>, "type" | "options" | "targets" | "fieldConfig"> & {
  type: Type;
  options: Plain<Optional<Options>>;
  targets: Query[];
  fieldConfig: Omit<Plain<Fields>, "defaults"> & {
    defaults: Omit<Plain<Fields["defaults"]>, "custom"> & { custom?: Plain<Optional<Custom>> };
  };
};
type Board = Omit<Plain<Dashboard>, "panels"> & {
  panels: (Drawn<"stat", stat.Options, {}> | Drawn<"timeseries", lines.Options, lines.FieldConfig>)[];
};

export const board: Board = BOARD;
