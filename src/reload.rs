//! SIGHUP and an ingress: it reads its file again, and takes over what may change while requests run. Flags stay those of
//! its command line and variables those of its start, so that the same rules as at the start decide which value counts.

use crate::{
    cli,
    config::{self, Changes, ParseError, Told, Values},
    signals::Hangups,
};
use otela_ingress::{Ingress, IngressConfig, Settings};
use otela_node::telemetry::chain;
use std::ffi::OsString;
use tokio::task::spawn_blocking;

/// What an ingress needs to reread its file.
#[derive(Debug)]
pub(crate) struct Reloads {
    argv: Vec<OsString>,
    has_file: bool,
    /// What it runs with.
    running: Values,
}

/// What has come of a file that was read again.
#[derive(Debug)]
enum Reread {
    /// It cannot be used, and why.
    Refused(String),
    /// It is good. Without settings nothing that can be taken over has changed.
    Good { settings: Option<Box<Settings>>, changes: Changes },
}

impl Reloads {
    /// Of a process that was started as `argv` and runs with `running`.
    pub(crate) fn new(argv: Vec<OsString>, has_file: bool, running: Values) -> Self {
        Self { argv, has_file, running }
    }

    /// Does what SIGHUP asks for, each time. Never ends.
    pub(crate) async fn follow(mut self, mut hangups: Hangups, ingress: &Ingress) {
        loop {
            hangups.next().await;
            if !self.has_file {
                tracing::warn!("SIGHUP: there is no configuration file to reread, start with --config to have one");
                continue;
            }
            let argv = self.argv.clone();
            // It waits for a disk, and a file may have thousands of values to check.
            let reread = match spawn_blocking(move || config::parse(&argv)).await {
                Ok(told) => self.reread(told),
                Err(panicked) => Reread::Refused(panicked.to_string()),
            };
            tell(&reread);
            match reread {
                Reread::Refused(_) => ingress.reload_refused(),
                Reread::Good { settings: Some(settings), .. } => ingress.reload(*settings),
                Reread::Good { settings: None, .. } => {}
            }
        }
    }

    /// What is to be done with what the file says now.
    fn reread(&mut self, told: Result<Told, ParseError>) -> Reread {
        let Told { cli, values, .. } = match told {
            Ok(told) => told,
            Err(error) => return Reread::Refused(error.line()),
        };
        let cli::Command::Ingress(args) = cli.command else {
            return Reread::Refused("its command line does not call an ingress".to_owned());
        };
        // What would not start is not taken over either.
        match args.config() {
            Err(error) => Reread::Refused(chain(&error)),
            Ok(IngressConfig { tls: Some(tls), .. }) if let Err(error) = tls.check() => Reread::Refused(chain(&error)),
            Ok(config) => {
                let changes = self.running.take_over(values, &cli::live_flags());
                let settings = (!changes.taken.is_empty()).then(|| Box::new(config.settings));
                Reread::Good { settings, changes }
            }
        }
    }
}

fn tell(reread: &Reread) {
    match reread {
        Reread::Refused(reason) => tracing::warn!("SIGHUP: the configuration stays as it was: {reason}"),
        Reread::Good { changes: Changes { taken, left }, .. } => {
            if taken.is_empty() && left.is_empty() {
                tracing::info!("SIGHUP: the configuration was reread, nothing has changed");
            }
            if !taken.is_empty() {
                tracing::info!("SIGHUP: the configuration was reread: {taken}");
            }
            if !left.is_empty() {
                tracing::warn!("SIGHUP: the configuration was reread, and only a restart takes over {left}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{path::Path, time::Duration};

    struct Fixture {
        dir: tempfile::TempDir,
        argv: Vec<OsString>,
        reloads: Reloads,
    }

    fn write(dir: &Path, text: &str) {
        std::fs::write(dir.join("otela.toml"), text).unwrap();
    }

    fn started(text: &str, flags: &[&str]) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), text);
        let file = dir.path().join("otela.toml").into_os_string();
        let words = ["otela", "ingress", "--config"].map(OsString::from).into_iter().chain([file]);
        let argv: Vec<OsString> = words.chain(flags.iter().map(OsString::from)).collect();
        let told = config::parse(&argv).unwrap();
        let reloads = Reloads::new(argv.clone(), told.file.is_some(), told.values);
        Fixture { dir, argv, reloads }
    }

    impl Fixture {
        fn reread(&mut self, text: &str) -> Reread {
            write(self.dir.path(), text);
            self.reloads.reread(config::parse(&self.argv))
        }

        /// What was taken over, what was not, and the settings.
        fn good(&mut self, text: &str) -> (String, String, Option<Box<Settings>>) {
            match self.reread(text) {
                Reread::Good { settings, changes } => (changes.taken.to_string(), changes.left.to_string(), settings),
                Reread::Refused(reason) => panic!("{reason}"),
            }
        }

        fn refused(&mut self, text: &str) -> String {
            match self.reread(text) {
                Reread::Refused(reason) => reason,
                good => panic!("{good:?}"),
            }
        }
    }

    #[test]
    fn what_changes_is_told_with_both_values() {
        let mut ingress = started("[ingress]\nretries_max = 3\nkeep_alive = '9s'", &["--keep-alive", "8s"]);
        assert!(matches!(ingress.good("[ingress]\nretries_max = 3"), (none, _, None) if none.is_empty()));
        let text = "[ingress]\nretries_max = 5\nkeep_alive = '7s'\ncors = ['https://a.org']\nanswer_within = '1s'";
        let (taken, left, settings) = ingress.good(text);
        let told = "[ingress] cors: [] -> [\"https://a.org\"]; [ingress] retries_max: 3 -> 5; \
                    [ingress] answer_within: \"never\" -> \"1s\"";
        assert_eq!((taken.as_str(), left.as_str()), (told, ""));
        let settings = settings.unwrap();
        assert_eq!((settings.usual.retries_max, settings.usual.answer_within), (5, Some(Duration::from_secs(1))));
        assert_eq!(settings.keep_alive_every, Duration::from_secs(8), "the flag still wins");
        assert!(ingress.good(text).2.is_none(), "it is compared with the last one");
        let (taken, _, settings) = ingress.good("");
        assert!(taken.contains("retries_max: 5 -> 3") && settings.unwrap().usual.answer_within.is_none(), "{taken}");
    }

    #[test]
    fn models_change_one_by_one() {
        let mut ingress =
            started("[ingress.models.'a/b']\npolicy = 'p2c'\nqueue_max = 2\n[ingress.models.old]\nresume = false", &[]);
        let text = "[ingress]\nretries_max = 1\n[ingress.models.'a/b']\npolicy = 'affinity'\nqueue_max = 2\n\
                    [ingress.models.new]\nanswer_within = '2s'";
        let (taken, _, settings) = ingress.good(text);
        let told = "[ingress] retries_max: 3 -> 1; [ingress.models.\"a/b\"] policy: \"p2c\" -> \"affinity\"; \
                    [ingress.models.\"new\"] answer_within: as usual -> \"2s\"; [ingress.models.\"old\"] resume: false -> as usual";
        assert_eq!(taken, told);
        let settings = settings.unwrap();
        let of = |id: &str| settings.of(id).clone();
        assert_eq!((of("a/b").queue_max, of("a/b").retries_max, of("new").retries_max), (2, 1, 1));
        assert!(of("old").resume && !settings.models.contains_key("old"));
        assert!(ingress.good(text).0.is_empty());
    }

    #[test]
    fn what_needs_a_restart_is_named_each_time() {
        let mut ingress = started("", &[]);
        let text =
            "threads = 7\n[peer]\nmesh = 'other'\n[ingress]\nlisten = '127.0.0.1:1'\ndrain = '1s'\nretries_max = 1";
        let (taken, left, settings) = ingress.good(text);
        assert_eq!((taken.as_str(), settings.unwrap().usual.retries_max), ("[ingress] retries_max: 3 -> 1", 1));
        for change in [
            "threads: not set -> 7",
            "[peer] mesh: not set -> \"other\"",
            "[ingress] listen: \"127.0.0.1:8080\" -> \"127.0.0.1:1\"",
            "[ingress] drain: \"30s\" -> \"1s\"",
        ] {
            assert!(left.contains(change), "{change}: {left}");
        }
        let (taken, again, settings) = ingress.good(text);
        assert_eq!((taken.as_str(), again, settings.is_none()), ("", left, true));
    }

    #[test]
    fn a_bad_file_changes_nothing() {
        let mut ingress = started("[ingress]\nretries_max = 2", &[]);
        let reason = ingress.refused("[ingress]\nretries_max = 1\nlisen = 3");
        assert!(reason.contains("otela.toml:3: [ingress] lisen is not known"), "{reason}");
        let reason = ingress.refused("[ingress.models.m]\npolicy = 'clever'");
        assert!(reason.contains(":2: [ingress.models.\"m\"] policy cannot be \"clever\""), "{reason}");
        let reason = ingress.refused("[ingress]\nlisten = '0.0.0.0:80'");
        assert!(reason.contains("--open"), "{reason}");
        let reason = ingress.refused("[ingress]\nhttps_cert = 'nowhere.pem'\nhttps_key = 'k'");
        assert!(reason.contains("cannot use nowhere.pem"), "{reason}");
        let reason = ingress.refused("[traces]\nto = 'nonsense'");
        assert!(reason.contains(":2: [traces] to cannot be \"nonsense\""), "{reason}");
        let reason = ingress.refused("[log]\nfilter = 'a=b=c'");
        assert!(reason.contains(":2: [log] filter cannot be \"a=b=c\""), "{reason}");
        std::fs::remove_file(ingress.dir.path().join("otela.toml")).unwrap();
        let Reread::Refused(reason) = ingress.reloads.reread(config::parse(&ingress.argv)) else { panic!() };
        assert!(reason.contains("No such file") && !reason.contains('\n'), "{reason}");
        assert!(ingress.good("[ingress]\nretries_max = 2").2.is_none(), "it is as before");
    }

    #[test]
    fn a_command_line_that_no_longer_fits_is_told_on_one_line() {
        let mut ingress = started("[ingress]\nhttps_key = 'k'", &["--https-cert", "c"]);
        let reason = ingress.refused("");
        assert!(
            reason.contains("--https-key <FILE>") && !reason.contains("Usage") && !reason.contains('\n'),
            "{reason}"
        );
    }

    #[test]
    fn long_values_and_many_changes_are_cut() {
        let mut ingress = started("", &[]);
        let tables = (0..30).map(|n| format!("[ingress.models.m{n}]\nqueue_max = {n}\n"));
        let text = format!("ingress.cors = ['https://{}.org']\n{}", "a".repeat(200), tables.collect::<String>());
        let (taken, _, settings) = ingress.good(&text);
        assert!(taken.len() < 2_000 && taken.contains('…') && taken.ends_with("; and 11 more"), "{taken}");
        assert_eq!(settings.unwrap().models.len(), 30);
    }
}
