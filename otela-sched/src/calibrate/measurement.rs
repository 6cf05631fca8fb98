//! Measured times of whole batches, as a table with a head line.

/// A batch that somebody has measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// The line in the table, from 1 on.
    pub line: usize,
    /// The accelerator, as the table calls it.
    pub accelerator: String,
    /// The engine.
    pub engine: String,
    /// The engine's version; empty if the table does not say.
    pub version: String,
    /// The model, as the table calls it.
    pub model: String,
    /// Accelerators.
    pub tp: u32,
    /// Sequences.
    pub batch: u32,
    /// Tokens of each prompt.
    pub prompt: u32,
    /// Tokens of each answer; with 1 the time is the time to first token.
    pub answer: u32,
    /// From the prompts to the last token, in seconds.
    pub seconds: f64,
}

/// What is wrong with a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MeasurementError {
    /// A column is missing.
    #[error("{file}: no column {column}: the first line must name {}", REQUIRED.join(", "))]
    Column {
        /// The table.
        file: String,
        /// Which.
        column: &'static str,
    },
    /// A value is none.
    #[error("{file}: line {line}: {value:?} is no {column}")]
    Value {
        /// The table.
        file: String,
        /// Where.
        line: usize,
        /// The column.
        column: &'static str,
        /// What is there.
        value: String,
    },
}

const REQUIRED: [&str; 8] =
    ["accelerator", "engine", "model", "tp", "batch", "input_tokens", "output_tokens", "latency_s"];

impl Measurement {
    /// Reads a table of values separated by commas, without quotes: `text` of the file called `file`. Columns are found by
    /// the names in the first line; `version` may be there, and others are not read.
    pub fn read(file: &str, text: &str) -> Result<Vec<Self>, MeasurementError> {
        let mut lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
        let head: Vec<&str> = lines.next().map_or_else(Vec::new, |(line, _)| line.split(',').map(str::trim).collect());
        let place = |column| head.iter().position(|name| *name == column);
        let mut places = [0; REQUIRED.len()];
        for (at, column) in places.iter_mut().zip(REQUIRED) {
            *at = place(column).ok_or_else(|| MeasurementError::Column { file: file.to_owned(), column })?;
        }
        let version = place("version");
        lines
            .map(|(line, number)| {
                Row { file, number, values: line.split(',').map(str::trim).collect() }.read(places, version)
            })
            .collect()
    }
}

impl Measurement {
    /// A table of these, which [`Measurement::read`] reads. A comma in a name would end it, and becomes a space.
    pub fn table(rows: &[Self]) -> String {
        let name = |text: &str| text.replace([',', '\n', '\r'], " ");
        let mut text = format!("{},version\n", REQUIRED.join(","));
        for row in rows {
            let (accelerator, engine, model) = (name(&row.accelerator), name(&row.engine), name(&row.model));
            let Self { tp, batch, prompt, answer, seconds, .. } = row;
            let version = name(&row.version);
            text += &format!("{accelerator},{engine},{model},{tp},{batch},{prompt},{answer},{seconds:.6},{version}\n");
        }
        text
    }
}

struct Row<'a> {
    file: &'a str,
    number: usize,
    values: Vec<&'a str>,
}

impl Row<'_> {
    fn read(&self, places: [usize; REQUIRED.len()], version: Option<usize>) -> Result<Measurement, MeasurementError> {
        let text = |i: usize| self.values.get(places[i]).copied().unwrap_or_default();
        let wrong = |i: usize| MeasurementError::Value {
            file: self.file.to_owned(),
            line: self.number,
            column: REQUIRED[i],
            value: text(i).to_owned(),
        };
        let named = |i: usize| if text(i).is_empty() { Err(wrong(i)) } else { Ok(text(i).to_owned()) };
        let count = |i: usize| text(i).parse().ok().filter(|count| *count > 0u32).ok_or_else(|| wrong(i));
        let seconds = text(7).parse().ok().filter(|s: &f64| s.is_finite() && *s > 0.0).ok_or_else(|| wrong(7))?;
        Ok(Measurement {
            line: self.number,
            accelerator: named(0)?,
            engine: named(1)?,
            version: version.and_then(|at| self.values.get(at)).map_or_else(String::new, |v| (*v).to_owned()),
            model: named(2)?,
            tp: count(3)?,
            batch: count(4)?,
            prompt: count(5)?,
            answer: count(6)?,
            seconds,
        })
    }
}
