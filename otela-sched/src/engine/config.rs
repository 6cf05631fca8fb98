//! What a simulated engine is told at start, and whether it makes sense.

use super::{
    batch::Room,
    faults::Faults,
    pace::{Pace, Profile, Timing},
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

/// Sequences that may wait; vLLM has no limit, but a queue without one only hides an overload.
const QUEUE_MAX: usize = 16_384;
/// Room for this many sequences of full length unless told otherwise: about what an 8B model leaves on 80 GB.
const FULL_SEQUENCES: u32 = 16;

/// How to run a simulated engine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What it says it serves.
    pub model: ModelConfig,
    /// How fast it computes, unless it has a profile.
    pub timing: Timing,
    /// The model and the accelerators whose speed and room it has, by the cost model.
    pub profile: Option<Profile>,
    /// What it has room for.
    pub capacity: Capacity,
    /// When it starts to answer.
    pub start: Start,
    /// An idle kept-alive connection is closed after this.
    pub idle_timeout: Duration,
    /// What goes wrong in every generating request.
    pub faults: Faults,
    /// Whether a request may choose its own faults in its field `otela_sim`.
    pub allow_faults: bool,
    /// Exit code of a crash done on purpose.
    pub crash_code: u8,
}

/// The model that is simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// What was asked to be served: a model id or a path. Nothing is loaded from it.
    pub root: String,
    /// The names it is served by; the first one is its main name. Empty means `root`.
    pub served_names: Vec<String>,
    /// The most tokens of prompt and answer together.
    pub max_model_len: u32,
    /// Numbers in an embedding.
    pub embedding_dim: u32,
    /// Engines with the same seed give the same answers, and can continue each other's.
    pub seed: u64,
}

/// Slots and KV blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences computed at once.
    pub max_num_seqs: u32,
    /// KV blocks; `None` gives room for 16 sequences of full length.
    pub num_gpu_blocks: Option<u32>,
    /// Tokens in a block.
    pub block_size: u32,
}

/// How the start of a real engine is imitated. Both begin with the call of `serve`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Start {
    /// The port opens after this.
    pub port_after: Duration,
    /// With the port open, `/health` says 503 and the list of models is empty for this long.
    pub ready_after: Duration,
}

/// A configuration that makes no sense.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A value that must be positive is not.
    #[error("{name} must be at least 1")]
    Zero {
        /// The flag.
        name: &'static str,
    },
    /// A name of a model that no request could give.
    #[error("the model's name is empty: give a MODEL, and no empty --served-model-name")]
    EmptyName,
    /// A sequence of full length would never fit.
    #[error(
        "--num-gpu-blocks {blocks} of --block-size {block_size} hold fewer tokens than --max-model-len {max_model_len}: \
         a full sequence would never run; at least {needed} blocks are needed"
    )]
    TooFewBlocks {
        /// Blocks asked for.
        blocks: u32,
        /// Tokens in each.
        block_size: u32,
        /// What has to fit.
        max_model_len: u32,
        /// Blocks that would do.
        needed: u32,
    },
    /// A rate at which nothing would ever be done.
    #[error("--prefill-rate {0} is not a positive number of tokens per second")]
    PrefillRate(f64),
    /// A status that is not an error.
    #[error("--fail {0} is not an HTTP error status from 400 to 599")]
    FailStatus(u16),
}

impl EngineConfig {
    /// The defaults of the command line for a model.
    #[must_use]
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8000),
            model: ModelConfig {
                root: model.into(),
                served_names: Vec::new(),
                max_model_len: 32_768,
                embedding_dim: 384,
                seed: 0,
            },
            timing: Timing { ttft: Duration::from_millis(30), itl: Duration::from_millis(8), prefill_rate: None },
            profile: None,
            capacity: Capacity { max_num_seqs: 256, num_gpu_blocks: None, block_size: 16 },
            start: Start::default(),
            idle_timeout: Duration::from_secs(5),
            faults: Faults::default(),
            allow_faults: false,
            crash_code: 134,
        }
    }

    /// Whether an engine can run like this.
    ///
    /// # Errors
    /// The first thing that makes no sense, named by its flag.
    pub fn check(&self) -> Result<(), ConfigError> {
        let positive = [
            ("--max-model-len", self.model.max_model_len),
            ("--embedding-dim", self.model.embedding_dim),
            ("--max-num-seqs", self.capacity.max_num_seqs),
            ("--block-size", self.capacity.block_size),
        ];
        if let Some(&(name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::Zero { name });
        }
        if self.names().iter().any(|name| name.trim().is_empty()) {
            return Err(ConfigError::EmptyName);
        }
        let needed = self.model.max_model_len.div_ceil(self.capacity.block_size);
        if let Some(blocks) = self.capacity.num_gpu_blocks.filter(|blocks| *blocks < needed) {
            let (block_size, max_model_len) = (self.capacity.block_size, self.model.max_model_len);
            return Err(ConfigError::TooFewBlocks { blocks, block_size, max_model_len, needed });
        }
        match self.timing.prefill_rate {
            Some(rate) if !(rate.is_finite() && rate > 0.0) => return Err(ConfigError::PrefillRate(rate)),
            _ => {}
        }
        match self.faults.fail {
            Some(fail) if !(400..600).contains(&fail.status) => Err(ConfigError::FailStatus(fail.status)),
            _ => Ok(()),
        }
    }

    /// The names the model is served by; never empty.
    pub(crate) fn names(&self) -> &[String] {
        match self.model.served_names.as_slice() {
            [] => std::slice::from_ref(&self.model.root),
            names => names,
        }
    }

    pub(crate) fn pace(&self) -> Pace {
        self.profile.clone().map_or(Pace::Told(self.timing), |profile| Pace::Profile(Box::new(profile)))
    }

    pub(crate) fn room(&self) -> Room {
        let full = self.model.max_model_len.div_ceil(self.capacity.block_size);
        let usual = match &self.profile {
            // A full sequence fits in any case, as it does in what a real engine lets start.
            Some(profile) => (profile.kv_tokens / self.capacity.block_size).max(full),
            None => full.saturating_mul(FULL_SEQUENCES),
        };
        Room {
            slots: self.capacity.max_num_seqs as usize,
            blocks: self.capacity.num_gpu_blocks.unwrap_or(usual),
            block_tokens: self.capacity.block_size,
            queue: QUEUE_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::faults::Failure;

    #[test]
    fn the_defaults_make_sense() {
        let config = EngineConfig::new("a/model");
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.names(), ["a/model"]);
        assert_eq!(config.room().blocks, 32_768);
    }

    #[test]
    fn what_makes_no_sense_is_named_by_its_flag() {
        let broken = |change: fn(&mut EngineConfig)| {
            let mut config = EngineConfig::new("m");
            change(&mut config);
            config.check().map_err(|error| error.to_string()).unwrap_err()
        };
        assert!(broken(|c| c.capacity.block_size = 0).contains("--block-size"));
        assert!(broken(|c| c.capacity.max_num_seqs = 0).contains("--max-num-seqs"));
        assert!(broken(|c| c.model.served_names = vec![" ".into()]).contains("--served-model-name"));
        assert!(broken(|c| c.capacity.num_gpu_blocks = Some(2047)).contains("at least 2048 blocks"));
        assert!(broken(|c| c.timing.prefill_rate = Some(0.0)).contains("--prefill-rate 0"));
        assert!(broken(|c| c.faults.fail = Some(Failure { status: 200, retry_after: None })).contains("--fail 200"));
    }
}
