//! A simulation: latencies over time, how they are spread, and how much the replicas had to do.

use super::{
    Area, GRID, INK, MARGIN, PALE, Painted, Picture, TEXT, TITLE, color, faint, legend, legend_height, width,
    write_text,
};
use otela_sched::scenario::{Loss, ModelReport, Moment, Report};
use plotters::prelude::*;

/// Of each of the three charts, without its title and its legend.
const CHART: u32 = 270;
const ABOVE: i32 = 16;

/// A simulation's picture.
pub(in crate::sched) struct Simulation<'a> {
    /// What came of it.
    pub(in crate::sched) report: &'a Report,
    /// What was lost on the way.
    pub(in crate::sched) losses: &'a [Loss],
}

type Line = (RGBColor, u32, Vec<(f64, f64)>);

/// One of the charts.
struct Chart<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
    legend: Vec<(String, RGBColor)>,
    lines: Vec<Line>,
    /// The end of the upright axis, if not what the lines need.
    top: Option<f64>,
    marks: Vec<(f64, String)>,
}

impl Picture for Simulation<'_> {
    fn height(&self) -> u32 {
        self.charts().iter().map(Chart::height).sum::<u32>() + ABOVE.cast_unsigned()
    }

    fn paint<B: DrawingBackend>(&self, area: &Area<'_, B>) -> Painted<B> {
        let mut rest = area.split_vertically(ABOVE).1;
        for chart in self.charts() {
            let (one, others) = rest.split_vertically(chart.height());
            chart.paint(&one)?;
            rest = others;
        }
        Ok(())
    }
}

impl Simulation<'_> {
    fn charts(&self) -> [Chart<'_>; 3] {
        let models = || self.report.models.iter().enumerate();
        let names: Vec<_> = models().map(|(nth, model)| (model.model.clone(), color(nth))).collect();
        let end = self.report.models.iter().filter_map(|model| model.timeline.last()).map(|moment| moment.from);
        let (unit, name) = time_unit(end.fold(0.0, f64::max));
        let marks = || {
            let mark = |loss: &Loss| (loss.at / unit, format!("{} {} lost", loss.count, loss.accelerator));
            self.losses.iter().map(mark).collect()
        };
        let over_time = |of: fn(&Moment) -> Option<f64>, faded: f64, wide: u32| {
            let line = move |(nth, model): (usize, &ModelReport)| {
                let half = model.part_seconds() / 2.0;
                let points = model.timeline.iter().filter_map(|at| Some(((at.from + half) / unit, of(at)?)));
                (faint(color(nth), faded), wide, points.collect())
            };
            models().map(line).collect::<Vec<Line>>()
        };
        let mut latencies = over_time(|moment| moment.latency_p50, 0.55, 2);
        latencies.extend(over_time(|moment| moment.latency_p95, 0.0, 2));
        let (spread_names, spreads) = (names.clone(), models().map(|(nth, model)| spread(nth, model)).collect());
        let (running_names, running) = self.running(unit);
        [
            Chart {
                title: "Latency by when requests came: P95, and paler the median",
                x: name,
                y: "latency in seconds",
                legend: names,
                lines: latencies,
                top: None,
                marks: marks(),
            },
            Chart {
                title: "Share of requests with no more than this latency, the last hundredth left out",
                x: "latency in seconds",
                y: "share of requests in %",
                legend: spread_names,
                lines: spreads,
                top: Some(100.0),
                marks: Vec::new(),
            },
            Chart {
                title: "Requests that a replica works on at once, on average",
                x: name,
                y: "requests",
                legend: running_names,
                lines: running,
                top: None,
                marks: marks(),
            },
        ]
    }

    /// A line for each group of replicas, in its model's colour and paler from one group to the next.
    fn running(&self, unit: f64) -> (Vec<(String, RGBColor)>, Vec<Line>) {
        let (mut names, mut lines) = (Vec::new(), Vec::new());
        for (nth, model) in self.report.models.iter().enumerate() {
            for (group, replicas) in model.replicas.iter().enumerate() {
                #[expect(clippy::cast_precision_loss, reason = "a small number")]
                let paler = 0.7 * group as f64 / model.replicas.len() as f64;
                let (color, half) = (faint(color(nth), paler), model.part_seconds() / 2.0);
                let over = if replicas.tp > 1 { format!("{} x ", replicas.tp) } else { String::new() };
                names.push((format!("{} on {over}{}", model.model, replicas.accelerator), color));
                let moments = model.timeline.iter().zip(&replicas.running);
                let points = moments.filter_map(|(at, running)| Some(((at.from + half) / unit, (*running)?)));
                lines.push((color, 2, points.collect()));
            }
        }
        (names, lines)
    }
}

/// The distribution of a model's latencies. The last hundredth would press the others together.
fn spread(nth: usize, model: &ModelReport) -> Line {
    let count = model.latencies.len();
    #[expect(clippy::cast_precision_loss, reason = "at most a thousand")]
    let percent = |nth: usize| 100.0 * (nth + 1) as f64 / count as f64;
    let shown = model.latencies.iter().take((count * 99).div_ceil(100)).enumerate();
    (color(nth), 2, shown.map(|(nth, latency)| (*latency, percent(nth))).collect())
}

/// In which unit so many seconds are shown, and how the axis is called then.
fn time_unit(seconds: f64) -> (f64, &'static str) {
    match seconds {
        ..600.0 => (1.0, "time in seconds"),
        600.0..14_400.0 => (60.0, "time in minutes"),
        _ => (3_600.0, "time in hours"),
    }
}

impl Chart<'_> {
    fn height(&self) -> u32 {
        (30 + legend_height(&self.legend)).cast_unsigned() + CHART
    }

    fn paint<B: DrawingBackend>(&self, area: &Area<'_, B>) -> Painted<B> {
        write_text(area, self.title, (MARGIN, 0), TITLE, INK)?;
        let below = 28 + legend(area, (MARGIN, 28), &self.legend)?;
        let area = area.split_vertically(below).1;
        let most = |of: fn(&(f64, f64)) -> f64| {
            let most = self.lines.iter().flat_map(|(_, _, points)| points.iter().map(of)).fold(0.0, f64::max);
            if most > 0.0 { most } else { 1.0 }
        };
        // What was lost is written above the lines.
        let head = if self.marks.is_empty() { 1.08 } else { 1.2 };
        let (right, top) = (most(|point| point.0) * 1.01, self.top.unwrap_or(most(|point| point.1) * head));
        let mut chart = ChartBuilder::on(&area)
            .margin_top(8)
            .margin_bottom(14)
            .margin_left(MARGIN - 8)
            .margin_right(MARGIN)
            .x_label_area_size(42)
            .y_label_area_size(62)
            .build_cartesian_2d(0.0..right, 0.0..top)?;
        let text = |color: RGBColor| ("sans-serif", TEXT).into_font().color(&color);
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_labels(13)
            .y_labels(6)
            .x_label_formatter(&plain)
            .y_label_formatter(&plain)
            .label_style(text(PALE))
            .axis_desc_style(text(INK))
            .axis_style(PALE)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (nth, (at, what)) in self.marks.iter().enumerate() {
            chart.draw_series(DashedLineSeries::new([(*at, 0.0), (*at, top)], 4, 4, PALE.stroke_width(1)))?;
            let (x, y) = chart.backend_coord(&(*at, top));
            let (left, above) = area.get_base_pixel();
            let beside = if *at > 0.7 * right { -6 - width(what, TEXT) } else { 6 };
            let below = 2 + 18 * i32::try_from(nth % 3).unwrap_or(0);
            write_text(&area, what, (x - left + beside, y - above + below), TEXT, PALE)?;
        }
        for (color, wide, points) in &self.lines {
            chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(*wide)))?;
        }
        Ok(())
    }
}

/// A number with no more digits than it needs.
fn plain(value: &f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_in_units_that_people_read() {
        assert_eq!([30.0, 3_600.0, 86_400.0].map(|seconds| time_unit(seconds).0), [1.0, 60.0, 3_600.0]);
        assert_eq!([0.0, 0.25, 12.0, 1500.0].map(|value| plain(&value)), ["0", "0.25", "12", "1500"]);
    }
}
