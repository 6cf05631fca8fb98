//! Pictures: what they are written as, and what they have in common.

mod placement;
mod simulation;

pub(super) use placement::{Map, Placed};
pub(super) use simulation::Simulation;

use super::SchedError;
use plotters::{coord::Shift, prelude::*};
use std::{fs, path::Path};

/// All pictures are as wide as this; text is readable where they are shown a tenth smaller.
const WIDTH: u32 = 1000;
/// Sizes of text, and of what stands beside it.
const TITLE: u32 = 18;
const TEXT: u32 = 14;
const MARGIN: i32 = 20;
/// What a letter takes of the size of its text, at the most and on average over a line.
const LETTER: f64 = 0.6;

const INK: RGBColor = RGBColor(38, 44, 53);
const PALE: RGBColor = RGBColor(110, 118, 129);
const GRID: RGBColor = RGBColor(228, 231, 236);

/// Colours that are told apart by most people, side by side.
const COLORS: [RGBColor; 10] = [
    RGBColor(47, 111, 181),
    RGBColor(224, 130, 43),
    RGBColor(58, 150, 92),
    RGBColor(190, 65, 74),
    RGBColor(126, 95, 178),
    RGBColor(64, 168, 184),
    RGBColor(140, 107, 77),
    RGBColor(212, 110, 164),
    RGBColor(157, 160, 50),
    RGBColor(84, 92, 140),
];

type Area<'a, B> = DrawingArea<B, Shift>;
type Painted<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// Something that can be drawn.
pub(super) trait Picture {
    /// How high it is.
    fn height(&self) -> u32;
    /// Draws it on an area that is so high.
    fn paint<B: DrawingBackend>(&self, area: &Area<'_, B>) -> Painted<B>;
}

/// Writes a picture into a file.
///
/// # Errors
/// [`SchedError::Plot`].
pub(super) fn write(path: &Path, picture: &impl Picture) -> Result<(), SchedError> {
    let wrong = |what: String| SchedError::Plot { path: path.to_owned(), what };
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, (WIDTH, picture.height())).into_drawing_area();
    let painted = area.fill(&WHITE).and_then(|()| picture.paint(&area)).and_then(|()| area.present());
    drop(area);
    painted.map_err(|error| wrong(error.to_string()))?;
    // In one piece: a file that is there is a whole picture.
    fs::write(path, text).map_err(|error| wrong(error.to_string()))
}

/// The colour of the `nth` of several things.
fn color(nth: usize) -> RGBColor {
    COLORS[nth % COLORS.len()]
}

/// The same nearer to white: 0 is the colour itself.
fn faint(color: RGBColor, ratio: f64) -> RGBColor {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two bytes")]
    let part = |byte: u8| (f64::from(byte) + (255.0 - f64::from(byte)) * ratio.clamp(0.0, 1.0)) as u8;
    RGBColor(part(color.0), part(color.1), part(color.2))
}

/// Writes a line of text, whose upper left corner is at `at`.
fn write_text<B: DrawingBackend>(
    area: &Area<'_, B>,
    text: &str,
    at: (i32, i32),
    size: u32,
    color: RGBColor,
) -> Painted<B> {
    area.draw_text(text, &("sans-serif", size).into_font().color(&color), at)
}

/// About how wide a text is.
fn width(text: &str, size: u32) -> i32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a line of text")]
    let width = (text.chars().count() as f64 * f64::from(size) * LETTER) as i32;
    width
}

/// Names with their colours, side by side from `at` on and in as many lines as they need; how high that is.
fn legend<B: DrawingBackend>(
    area: &Area<'_, B>,
    at: (i32, i32),
    entries: &[(String, RGBColor)],
) -> Result<i32, DrawingAreaErrorKind<B::ErrorType>> {
    for (place, (name, color)) in legend_places(entries).into_iter().zip(entries) {
        let (x, y) = (at.0 + place.0, at.1 + place.1);
        area.draw(&Rectangle::new([(x, y - 1), (x + 12, y + 11)], color.filled()))?;
        write_text(area, name, (x + 18, y), TEXT, INK)?;
    }
    Ok(legend_height(entries))
}

const LEGEND_LINE: i32 = 22;

fn legend_height(entries: &[(String, RGBColor)]) -> i32 {
    legend_places(entries).last().map_or(0, |(_, y)| y + LEGEND_LINE)
}

fn legend_places(entries: &[(String, RGBColor)]) -> Vec<(i32, i32)> {
    let room = WIDTH.cast_signed() - 2 * MARGIN;
    let (mut x, mut y) = (0, 0);
    let place = |(name, _): &(String, RGBColor)| {
        let wide = 18 + width(name, TEXT) + 20;
        if x > 0 && x + wide > room {
            (x, y) = (0, y + LEGEND_LINE);
        }
        let at = (x, y);
        x += wide;
        at
    };
    entries.iter().map(place).collect()
}
