//! Pictures of a simulation: how latencies are spread, and how they went over time.

use super::SchedError;
use otela_sched::scenario::{ModelReport, Report};
use plotters::prelude::*;
use std::{error::Error, path::Path};

const WIDTH: u32 = 1000;
const HEIGHT: u32 = 720;

/// Draws both into one SVG file.
pub(super) fn draw(path: &Path, report: &Report) -> Result<(), SchedError> {
    let wrong = |what: String| SchedError::Plot { path: path.to_owned(), what };
    let mut text = String::new();
    svg(&mut text, report).map_err(|error| wrong(error.to_string()))?;
    // In one piece: a file that is there is a whole picture.
    std::fs::write(path, text).map_err(|error| wrong(error.to_string()))
}

fn svg(text: &mut String, report: &Report) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let (over_time, spread) = root.split_vertically(HEIGHT / 2);
    let models = &report.models;
    let moments = |of: fn(&otela_sched::scenario::Moment) -> Option<f64>| {
        let line = move |model: &ModelReport| -> Vec<(f64, f64)> {
            model.timeline.iter().filter_map(|moment| of(moment).map(|value| (moment.from, value))).collect()
        };
        models.iter().map(line).collect::<Vec<_>>()
    };
    let title = "P95 of the latency by when requests came";
    let over = named(models, moments(|moment| moment.latency_p95));
    lines(&over_time, title, "seconds", SeriesLabelPosition::UpperLeft, &over)?;
    // The last hundredth would press the others together.
    let spreads = models.iter().map(|model| {
        let count = model.latencies.len();
        #[expect(clippy::cast_precision_loss, reason = "at most a thousand")]
        let share = |nth: usize| (nth + 1) as f64 / count as f64;
        let shown = model.latencies.iter().take((count * 99).div_ceil(100)).enumerate();
        shown.map(|(nth, latency)| (*latency, share(nth))).collect()
    });
    let title = "Share of requests with no more than this latency, the last hundredth left out";
    lines(&spread, title, "share", SeriesLabelPosition::LowerRight, &named(models, spreads.collect()))?;
    root.present()?;
    drop((over_time, spread));
    Ok(())
}

fn named(models: &[ModelReport], lines: Vec<Vec<(f64, f64)>>) -> Vec<(&str, Vec<(f64, f64)>)> {
    models.iter().map(|model| model.model.as_str()).zip(lines).collect()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// A line for each model.
fn lines(
    area: &Area<'_>,
    title: &str,
    up: &str,
    names_at: SeriesLabelPosition,
    all: &[(&str, Vec<(f64, f64)>)],
) -> Result<(), Box<dyn Error>> {
    let most = |of: fn(&(f64, f64)) -> f64| {
        let most = all.iter().flat_map(|(_, points)| points.iter().map(of)).fold(0.0, f64::max);
        if most > 0.0 { most * 1.05 } else { 1.0 }
    };
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..most(|point| point.0), 0.0..most(|point| point.1))?;
    chart.configure_mesh().x_desc("seconds").y_desc(up).light_line_style(WHITE).draw()?;
    for (nth, (name, points)) in all.iter().enumerate() {
        let color = Palette99::pick(nth).to_rgba();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(names_at)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}
