//! An accelerator as its data sheet describes it.

use super::{CatalogError, Precision, entry::Entry};

const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;

/// An accelerator. Bytes are decimal.
#[derive(Debug, Clone, PartialEq)]
pub struct Accelerator {
    /// The kind that nodes announce.
    pub name: String,
    /// Of which one this is another form: what was measured there is the best guess here.
    pub like: Option<String>,
    /// Memory, in bytes.
    pub memory_bytes: f64,
    /// Bandwidth of its memory, in bytes a second.
    pub bandwidth_bytes_per_s: f64,
    /// What it computes at most.
    pub peaks: Peaks,
    /// Its link to others of the node, both directions together, in bytes a second: as links are sold.
    pub link_bytes_per_s: f64,
    /// From the host's memory, one direction, in bytes a second.
    pub host_bytes_per_s: f64,
    /// Between nodes, one direction, in bytes a second.
    pub network_bytes_per_s: f64,
    /// How many a usual node has.
    pub per_node: u32,
    /// What it may draw, in watts, if known.
    pub power_w: Option<f64>,
}

/// Dense peaks in FLOP (or integer operations) a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peaks {
    /// With 16 bits.
    pub bf16: f64,
    /// With FP8, if it can.
    pub fp8: Option<f64>,
    /// With INT8, if it can.
    pub int8: Option<f64>,
    /// With FP4, if it can.
    pub fp4: Option<f64>,
}

impl Accelerator {
    /// The dense peak in a precision, in FLOP/s. Where it lacks the precision, engines compute in 16 bits.
    pub fn peak_flops(&self, precision: Precision) -> f64 {
        let peak = match precision {
            Precision::Bf16 => None,
            Precision::Fp8 => self.peaks.fp8,
            Precision::Int8 => self.peaks.int8,
            Precision::Fp4 => self.peaks.fp4,
        };
        peak.unwrap_or(self.peaks.bf16)
    }

    /// Reads an entry; `base` has what it leaves open.
    pub(super) fn read(entry: &mut Entry, base: Option<&Self>) -> Result<Self, CatalogError> {
        let of = |pick: fn(&Self) -> f64| base.map(pick);
        let mut scaled = |key, scale: f64, base| {
            let given = entry.number(key)?.map(|number| number * scale);
            entry.needed(key, given, base)
        };
        let memory_bytes = scaled("memory_gb", GIGA, of(|a| a.memory_bytes))?;
        let bandwidth_bytes_per_s = scaled("bandwidth_gb_s", GIGA, of(|a| a.bandwidth_bytes_per_s))?;
        let link_bytes_per_s = scaled("link_gb_s", GIGA, of(|a| a.link_bytes_per_s))?;
        let host_bytes_per_s = scaled("host_gb_s", GIGA, of(|a| a.host_bytes_per_s))?;
        let network_bytes_per_s = scaled("network_gb_s", GIGA, of(|a| a.network_bytes_per_s))?;
        let per_node = entry.count("per_node")?;
        let peaks = Peaks::read(entry)?;
        Ok(Self {
            name: entry.name.clone(),
            like: base.and_then(|a| if a.name == entry.name { a.like.clone() } else { Some(a.name.clone()) }),
            memory_bytes,
            bandwidth_bytes_per_s,
            peaks: entry.needed("peak_tflops", peaks, base.map(|a| a.peaks))?,
            link_bytes_per_s,
            host_bytes_per_s,
            network_bytes_per_s,
            per_node: entry.needed("per_node", per_node, base.map(|a| a.per_node))?,
            power_w: entry.number("power_w")?.or(base.and_then(|a| a.power_w)),
        })
    }
}

impl Peaks {
    fn read(entry: &mut Entry) -> Result<Option<Self>, CatalogError> {
        let Some(mut inner) = entry.inner("peak_tflops")? else { return Ok(None) };
        let mut peak = |key| inner.number(key).map(|number| number.map(|number| number * TERA));
        let (bf16, fp8, int8, fp4) = (peak("bf16")?, peak("fp8")?, peak("int8")?, peak("fp4")?);
        let bf16 = inner.needed("bf16", bf16, None)?;
        inner.end()?;
        Ok(Some(Self { bf16, fp8, int8, fp4 }))
    }
}
