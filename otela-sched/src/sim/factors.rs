//! How far engines stay behind the roofline.

/// Factors of one accelerator with one engine. [`Factors::IDEAL`] is the bare roofline.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Factors {
    /// Of the peak, what matrix products reach.
    pub compute_ratio: f64,
    /// Of the memory's bandwidth, what matrix products reach.
    pub bandwidth_ratio: f64,
    /// Of the memory's bandwidth, what reading keys and values reaches.
    pub attention_ratio: f64,
    /// Keys and values, counted for each query head that looks at them, over the bandwidth, so many times on top when
    /// decoding: kernels do not share all that grouped heads could share.
    pub regroup_passes: f64,
    /// New keys and values over the bandwidth, so many times, for being written into their blocks.
    pub kv_write_passes: f64,
    /// Logits in 32 bits over the bandwidth, so many times, for choosing a token.
    pub logit_passes: f64,
    /// Seconds of each layer and step.
    pub layer_seconds: f64,
    /// Seconds of each step.
    pub step_seconds: f64,
    /// Seconds of each sequence and step: an engine's work on the host grows with the batch.
    pub sequence_seconds: f64,
    /// Seconds of each all-reduce, whatever its size.
    pub all_reduce_seconds: f64,
    /// Of the link's bandwidth in one direction, what all-reduces reach.
    pub link_ratio: f64,
}

impl Factors {
    /// The accelerator as its data sheet has it, and an engine that costs nothing.
    pub const IDEAL: Self = Self {
        compute_ratio: 1.0,
        bandwidth_ratio: 1.0,
        attention_ratio: 1.0,
        regroup_passes: 0.0,
        kv_write_passes: 0.0,
        logit_passes: 0.0,
        layer_seconds: 0.0,
        step_seconds: 0.0,
        sequence_seconds: 0.0,
        all_reduce_seconds: 0.0,
        link_ratio: 1.0,
    };
}
