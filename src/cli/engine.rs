//! `otela engine`: the flags of the simulated engine.

use clap::{ArgGroup, Args};
use otela_sched::engine::{
    BreakOff, Capacity, EngineConfig, Failure, Faults, How, ModelConfig, Profile, Start, Timing,
};
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Run a simulated engine that speaks vLLM's HTTP API. It loads no model and says so in every answer.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example: otela engine Qwen/Qwen3-8B --port 8000 --ttft 50ms --itl 10ms")]
pub(crate) struct EngineArgs {
    /// Model to claim to serve: any id or path; nothing is read from it
    #[arg(value_name = "MODEL")]
    model: String,
    /// Names it is served by instead; the first is its main name
    #[arg(long, value_name = "NAME", num_args = 1..)]
    served_model_name: Vec<String>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// The most tokens of a prompt and its answer together
    #[arg(long, value_name = "TOKENS", default_value_t = 32_768)]
    max_model_len: u32,
    /// Numbers in an embedding
    #[arg(long, value_name = "N", default_value_t = 384)]
    embedding_dim: u32,
    /// Engines with the same seed give the same answers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Close an idle kept-alive connection after this
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "5s")]
    idle_timeout: Duration,
    #[command(flatten)]
    pace: PaceArgs,
    #[command(flatten)]
    faults: FaultArgs,
}

/// Speed and size.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speed and size")]
struct PaceArgs {
    /// Sequences computed at once
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_num_seqs: u32,
    /// KV blocks [default: enough for 16 sequences of full length]
    #[arg(long, value_name = "N")]
    num_gpu_blocks: Option<u32>,
    /// Tokens in a KV block
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    block_size: u32,
    /// Be as fast, and have as much room, as MODEL on ACCELERATOR, by the simulator: Llama-3.1-8B@H100, or over four
    /// Llama-3.3-70B@4xH100. MODEL here need not be the one that is served
    #[arg(long, value_name = "MODEL@ACCELERATOR", value_parser = Profile::named, conflicts_with_all = ["ttft", "itl", "prefill_rate"])]
    profile: Option<Profile>,
    /// Time from admission to the first token
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "30ms")]
    ttft: Duration,
    /// Time between two tokens of an answer
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "8ms")]
    itl: Duration,
    /// Prompt tokens per second, which come on top of --ttft [default: no limit]
    #[arg(long, value_name = "TOKENS/S")]
    prefill_rate: Option<f64>,
    /// Open the port after this
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "0s")]
    startup: Duration,
    /// With the port open, say 503 on /health and list no models until this long after the start
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "0s")]
    warmup: Duration,
}

/// What goes wrong in every generating request.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Faults, done on purpose in every generating request")]
#[group(skip)]
#[command(group = ArgGroup::new("break_off").multiple(false))]
struct FaultArgs {
    /// After N events say nothing more, with the connection open
    #[arg(long, value_name = "N", group = "break_off")]
    stall_after: Option<u64>,
    /// After N events close the connection without an end
    #[arg(long, value_name = "N", group = "break_off")]
    cut_after: Option<u64>,
    /// After N events reset the connection
    #[arg(long, value_name = "N", group = "break_off")]
    reset_after: Option<u64>,
    /// After N events go down as a whole, with --crash-code
    #[arg(long, value_name = "N", group = "break_off")]
    crash_after: Option<u64>,
    /// Exit code of a crash
    #[arg(long, value_name = "CODE", default_value_t = 134)]
    crash_code: u8,
    /// Take requests and never answer, while /health says that all is well
    #[arg(long)]
    hang: bool,
    /// Answer with this error status
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(400..600))]
    fail: Option<u16>,
    /// Retry-After that goes with --fail, rounded up to seconds
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "fail")]
    retry_after: Option<Duration>,
    /// Answer 200, and send an error as the first event
    #[arg(long)]
    error_event: bool,
    /// Say nothing for this long before the first event
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "0s")]
    silence: Duration,
    /// Let requests choose their own faults in the body's field "otela_sim"
    #[arg(long)]
    allow_faults: bool,
}

impl EngineArgs {
    /// What the flags mean. `otela_sched::engine::serve` checks whether it makes sense.
    #[must_use]
    pub(crate) fn config(self) -> EngineConfig {
        let Self { pace, faults, .. } = self;
        EngineConfig {
            listen: SocketAddr::new(self.host, self.port),
            model: ModelConfig {
                root: self.model,
                served_names: self.served_model_name,
                max_model_len: self.max_model_len,
                embedding_dim: self.embedding_dim,
                seed: self.seed,
            },
            timing: Timing { ttft: pace.ttft, itl: pace.itl, prefill_rate: pace.prefill_rate },
            profile: pace.profile,
            capacity: Capacity {
                max_num_seqs: pace.max_num_seqs,
                num_gpu_blocks: pace.num_gpu_blocks,
                block_size: pace.block_size,
            },
            start: Start { port_after: pace.startup, ready_after: pace.warmup },
            idle_timeout: self.idle_timeout,
            allow_faults: faults.allow_faults,
            crash_code: faults.crash_code,
            faults: faults.faults(),
        }
    }
}

impl FaultArgs {
    fn faults(&self) -> Faults {
        // Clap lets only one of them through.
        let break_off = [
            (self.stall_after, How::Stall),
            (self.cut_after, How::Cut),
            (self.reset_after, How::Reset),
            (self.crash_after, How::Crash),
        ]
        .into_iter()
        .find_map(|(events, how)| events.map(|events| BreakOff { events, how }));
        Faults {
            fail: self.fail.map(|status| Failure { status, retry_after: self.retry_after }),
            hang: self.hang,
            error_event: self.error_event,
            silence: self.silence,
            break_off,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, Parser};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        engine: EngineArgs,
    }

    fn config(line: &str) -> Result<EngineConfig, String> {
        Line::try_parse_from(std::iter::once("engine").chain(line.split(' ')))
            .map(|line| line.engine.config())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn flags_without_values_of_their_own_are_the_defaults() {
        Line::command().debug_assert();
        assert_eq!(config("a/model"), Ok(EngineConfig::new("a/model")));
    }

    #[test]
    fn flags_reach_the_configuration() {
        let config = config(
            "m --port 0 --host ::1 --served-model-name x y --ttft 1s --itl 2ms --prefill-rate 100 --max-num-seqs 3 \
             --num-gpu-blocks 9 --block-size 4 --max-model-len 36 --warmup 3s --cut-after 4 --silence 5ms --fail 429 \
             --retry-after 7s --crash-code 3 --allow-faults --seed 8"
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
                .as_str(),
        )
        .unwrap();
        assert_eq!(config.listen, "[::1]:0".parse().unwrap());
        assert_eq!(config.model.served_names, ["x", "y"]);
        assert_eq!(config.timing.itl, Duration::from_millis(2));
        assert_eq!(config.capacity.num_gpu_blocks, Some(9));
        assert_eq!(config.start.ready_after, Duration::from_secs(3));
        assert_eq!(config.faults.break_off, Some(BreakOff { events: 4, how: How::Cut }));
        assert_eq!(config.faults.fail, Some(Failure { status: 429, retry_after: Some(Duration::from_secs(7)) }));
        assert!(config.allow_faults && config.crash_code == 3 && config.check().is_ok());
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        assert!(config("m --cut-after 1 --stall-after 2").unwrap_err().contains("--stall-after"));
        assert!(config("m --retry-after 2s").unwrap_err().contains("--fail"));
        assert!(config("m --fail 200").unwrap_err().contains("--fail"));
        assert!(config("m --ttft soon").unwrap_err().contains("--ttft"));
    }
}
