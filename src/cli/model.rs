//! The flags of `otela ingress` that say how requests for a model are treated. They hold for every model, and the table of a
//! model in the configuration file may say otherwise: its keys are these flags, and are read by them.

use clap::{
    Arg, ArgAction, Args, Command, FromArgMatches,
    builder::{BoolishValueParser, Resettable, StringValueParser, TypedValueParser},
    error::ErrorKind,
    parser::ValueSource,
};
use otela_ingress::{ModelSettings, Policy};
use std::{ffi::OsStr, str::FromStr, time::Duration};

/// How requests for a model are treated.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Requests")]
pub(crate) struct ModelArgs {
    /// How replicas are picked: random, round-robin, weighted, least-loaded, p2c or affinity. `help` explains them.
    #[arg(long, env = "OTELA_INGRESS_POLICY", value_name = "NAME", default_value = "random", value_parser = PolicyParser)]
    policy: Policy,
    /// Further nodes to try after the first.
    #[arg(long, env = "OTELA_INGRESS_RETRIES_MAX", value_name = "N", default_value = "3")]
    retries_max: u32,
    /// How long a node may take until the head of its answer, for example 10m; or never.
    #[arg(long, env = "OTELA_INGRESS_ANSWER_WITHIN", value_name = "TIME", default_value = "never")]
    answer_within: Limit,
    /// How long an answer that has begun may pause; or never.
    #[arg(long, env = "OTELA_INGRESS_STALL_WITHIN", value_name = "TIME", default_value = "30m")]
    stall_within: Limit,
    /// Give a request that has waited so long for its first byte to a second node as well, and take what comes first; or
    /// never.
    #[arg(long, env = "OTELA_INGRESS_HEDGE_AFTER", value_name = "TIME", default_value = "never")]
    hedge_after: Limit,
    /// Requests in flight on one replica from this ingress. More wait in a queue.
    #[arg(long, env = "OTELA_INGRESS_IN_FLIGHT_MAX", value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..))]
    in_flight_max: u32,
    /// Requests for a model that may wait for a place. More are refused with 503.
    #[arg(long, env = "OTELA_INGRESS_QUEUE_MAX", value_name = "N", default_value = "1024")]
    queue_max: usize,
    /// How long they may wait.
    #[arg(long, env = "OTELA_INGRESS_QUEUE_WITHIN", value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    queue_within: Duration,
    /// Do not continue streams that break on another node.
    #[arg(long, env = "OTELA_INGRESS_NO_RESUME", value_parser = BoolishValueParser::new())]
    no_resume: bool,
}

/// The same flags as a command of their own.
pub(crate) fn model_flags() -> Command {
    ModelArgs::augment_args(Command::new("model"))
}

impl ModelArgs {
    /// These, but for what `flags` say otherwise, such as `--retries-max=2`. Here a switch has a value too,
    /// `--no-resume=false`: it may undo what holds for every model.
    ///
    /// # Errors
    /// Clap's, if one of them is not known or its value is not allowed.
    pub(super) fn with(&self, flags: impl IntoIterator<Item = String>) -> Result<Self, clap::Error> {
        let command = model_flags().mut_args(|flag| {
            // What is not said stays as it is, whatever the usual value comes from.
            let flag = flag.env(Resettable::Reset).default_value(Resettable::Reset);
            if matches!(flag.get_action(), ArgAction::SetTrue) { flag.action(ArgAction::Set) } else { flag }
        });
        let words = [command.get_name().to_owned()].into_iter().chain(flags);
        let said = command.try_get_matches_from(words)?;
        let mut model = self.clone();
        model.update_from_arg_matches(&said)?;
        Ok(model)
    }

    /// The same as settings.
    pub(super) fn settings(&self) -> ModelSettings {
        ModelSettings {
            policy: self.policy,
            retries_max: self.retries_max,
            answer_within: self.answer_within.0,
            stall_within: self.stall_within.0,
            hedge_after: self.hedge_after.0,
            in_flight_max: self.in_flight_max,
            queue_max: self.queue_max,
            queue_within: self.queue_within,
            resume: !self.no_resume,
        }
    }
}

/// A policy; or on the command line the wish to be told of them, which is granted as `--help` is.
#[derive(Debug, Clone, Copy)]
struct PolicyParser;

impl PolicyParser {
    const HELP: &str = "help";

    fn help() -> clap::Error {
        let each = |policy: Policy| format!("{policy}\n    {}\n", policy.about());
        clap::Error::raw(ErrorKind::DisplayHelp, Policy::ALL.into_iter().map(each).collect::<String>())
    }
}

impl TypedValueParser for PolicyParser {
    type Value = Policy;

    fn parse_ref(&self, command: &Command, flag: Option<&Arg>, text: &OsStr) -> Result<Policy, clap::Error> {
        StringValueParser::new().try_map(|text| text.parse::<Policy>()).parse_ref(command, flag, text)
    }

    fn parse_ref_(
        &self,
        command: &Command,
        flag: Option<&Arg>,
        text: &OsStr,
        from: ValueSource,
    ) -> Result<Policy, clap::Error> {
        if from == ValueSource::CommandLine && text == Self::HELP {
            return Err(Self::help());
        }
        self.parse_ref(command, flag, text)
    }
}

/// A time, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit(pub(super) Option<Duration>);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Self(None)),
            time => match humantime::parse_duration(time) {
                Ok(Duration::ZERO) => Err("0 would end everything at once: give a time, or never".to_owned()),
                Ok(time) => Ok(Self(Some(time))),
                Err(error) => Err(format!("{error}; or never")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual(flags: &[&str]) -> ModelArgs {
        let words = ["model"].iter().chain(flags);
        ModelArgs::from_arg_matches(&model_flags().try_get_matches_from(words).unwrap()).unwrap()
    }

    fn with(usual: &ModelArgs, flags: &[&str]) -> ModelSettings {
        usual.with(flags.iter().map(|flag| (*flag).to_owned())).unwrap().settings()
    }

    #[test]
    fn limits_are_a_time_or_never() {
        assert_eq!("never".parse(), Ok(Limit(None)));
        assert_eq!("90s".parse(), Ok(Limit(Some(Duration::from_secs(90)))));
        assert!("0s".parse::<Limit>().unwrap_err().contains("never"));
        assert!("soon".parse::<Limit>().unwrap_err().contains("never"));
    }

    #[test]
    fn policies_are_explained_where_somebody_asks_for_them() {
        let parse = |flag| model_flags().try_get_matches_from(["model", flag]).unwrap_err();
        let help = parse("--policy=help");
        assert_eq!((help.kind(), help.exit_code()), (ErrorKind::DisplayHelp, 0));
        for policy in Policy::ALL {
            assert!(help.to_string().contains(&format!("{policy}\n    {}", policy.about())), "{help}");
        }
        assert!(parse("--policy=clever").to_string().contains("clever"));
        // A variable cannot ask.
        let mut command = model_flags();
        command.build();
        let flag = command.get_arguments().find(|flag| flag.get_id() == "policy");
        let of_variable = PolicyParser.parse_ref_(&command, flag, OsStr::new("help"), ValueSource::EnvVariable);
        assert_eq!(of_variable.unwrap_err().exit_code(), 2);
    }

    #[test]
    fn the_usual_settings_are_the_librarys() {
        assert_eq!(usual(&[]).settings(), ModelSettings::default());
    }

    #[test]
    fn a_model_has_what_is_said_of_it_and_else_what_is_usual() {
        let named = usual(&["--policy", "p2c", "--retries-max", "7", "--no-resume", "--answer-within", "9s"]);
        assert_eq!(with(&named, &[]), named.settings());
        let said = with(&named, &["--retries-max=1", "--no-resume=false", "--answer-within=never"]);
        let expected = ModelSettings { retries_max: 1, resume: true, answer_within: None, ..named.settings() };
        assert_eq!(said, expected);
        // All there are.
        let all = ["policy=affinity", "retries-max=0", "answer-within=1s", "stall-within=2s", "hedge-after=3s"];
        let all = all.iter().chain(&["in-flight-max=4", "queue-max=5", "queue-within=6s", "no-resume=true"]);
        let all: Vec<String> = all.map(|flag| format!("--{flag}")).collect();
        assert_eq!(all.len(), model_flags().get_arguments().count());
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let expected = ModelSettings {
            policy: Policy::Affinity,
            retries_max: 0,
            answer_within: seconds(1),
            stall_within: seconds(2),
            hedge_after: seconds(3),
            in_flight_max: 4,
            queue_max: 5,
            queue_within: Duration::from_secs(6),
            resume: false,
        };
        assert_eq!(usual(&[]).with(all).unwrap().settings(), expected);
        assert!(usual(&[]).with(["--in-flight-max=0".to_owned()]).is_err());
    }
}
