//! The keys of the configuration file. Nobody lists them: each is a flag, and is called after the flag's variable.

use clap::{Arg, ArgAction, Command};
use std::{any::TypeId, fmt, sync::Arc};

/// What every variable of a key begins with.
const PREFIX: &str = "OTELA_";
/// The variable that names the file itself.
const OF_THE_FILE: &str = "OTELA_CONFIG";

/// How many values a key has, and of what form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// True or false: its flag stands alone.
    Switch,
    /// One value.
    One,
    /// Any number of values, separated by this in the variable.
    Many(Option<char>),
}

/// A key, and the flag that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    /// None is the file's top.
    pub(super) section: Option<String>,
    /// Its name within the section.
    pub(super) name: String,
    /// The variable that it is called after.
    pub(super) variable: String,
    /// The flag without its dashes.
    pub(super) long: String,
    /// The flag's name in clap's matches.
    pub(super) id: String,
    /// The form of its values.
    pub(super) kind: Kind,
    /// Whether its values are whole numbers.
    pub(super) is_number: bool,
}

impl Key {
    /// The key of a flag, if it has one.
    pub(super) fn of(flag: &Arg) -> Option<Self> {
        let variable = flag.get_env()?.to_str()?.to_owned();
        let (section, name) = place(&variable)?;
        let kind = match flag.get_action() {
            ArgAction::SetTrue => Kind::Switch,
            ArgAction::Append => Kind::Many(flag.get_value_delimiter()),
            _ => Kind::One,
        };
        Some(Self {
            section,
            name,
            long: flag.get_long()?.to_owned(),
            id: flag.get_id().as_str().to_owned(),
            kind,
            is_number: is_number(flag),
            variable,
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.section {
            Some(section) => write!(f, "[{section}] {}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// `OTELA_INGRESS_BODY_MIB_MAX` is `body_mib_max` of the section `ingress`, `OTELA_THREADS` is `threads` of none.
fn place(variable: &str) -> Option<(Option<String>, String)> {
    let words = variable.strip_prefix(PREFIX).filter(|_| variable != OF_THE_FILE)?.to_lowercase();
    match words.split_once('_') {
        Some((section, name)) => Some((Some(section.to_owned()), name.to_owned())),
        None => Some((None, words)),
    }
}

fn is_number(flag: &Arg) -> bool {
    let whole = [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<i64>(),
    ];
    let of_values = flag.get_value_parser().type_id();
    whole.iter().any(|of| of_values == *of)
}

/// A command by the words that call it: `["start"]`.
pub(super) type Path = [String];

/// The keys of all commands.
#[derive(Debug)]
pub(super) struct Keys {
    keys: Vec<(Arc<Key>, Vec<Vec<String>>)>,
}

impl Keys {
    /// The keys of all commands below `root`.
    pub(super) fn of(root: &Command) -> Self {
        let mut keys = Self { keys: Vec::new() };
        keys.add(root, &mut Vec::new(), &[]);
        keys
    }

    fn add(&mut self, command: &Command, path: &mut Vec<String>, inherited: &[&Arg]) {
        if !command.has_subcommands() {
            for flag in inherited.iter().copied().chain(command.get_arguments()) {
                self.add_flag(flag, path);
            }
        }
        let global = command.get_arguments().filter(|flag| flag.is_global_set());
        let inherited: Vec<&Arg> = inherited.iter().copied().chain(global).collect();
        for inner in command.get_subcommands() {
            path.push(inner.get_name().to_owned());
            self.add(inner, path, &inherited);
            path.pop();
        }
    }

    fn add_flag(&mut self, flag: &Arg, path: &Path) {
        let Some(key) = Key::of(flag) else { return };
        match self.keys.iter_mut().find(|(known, _)| known.variable == key.variable) {
            Some((_, commands)) => commands.push(path.to_owned()),
            None => self.keys.push((Arc::new(key), vec![path.to_owned()])),
        }
    }

    /// All of them, in the order of the flags.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.keys.iter().map(|(key, _)| key)
    }

    /// The keys that a command has.
    pub(super) fn of_command(&self, path: &Path) -> impl Iterator<Item = &Arc<Key>> {
        self.keys.iter().filter(move |(_, commands)| commands.iter().any(|of| of == path)).map(|(key, _)| key)
    }

    /// A command that has this key.
    pub(super) fn command_with(&self, key: &Key) -> &Path {
        let of = self.keys.iter().find(|(known, _)| **known == *key).and_then(|(_, commands)| commands.first());
        of.map_or(&[], Vec::as_slice)
    }

    /// The key of this name.
    pub(super) fn find(&self, section: Option<&str>, name: &str) -> Option<&Arc<Key>> {
        self.iter().find(|key| key.section.as_deref() == section && key.name == name)
    }

    /// Whether there is such a section.
    pub(super) fn has_section(&self, section: &str) -> bool {
        self.iter().any(|key| key.section.as_deref() == Some(section))
    }

    /// The known section that is most like an unknown one.
    pub(super) fn nearest_section(&self, section: &str) -> Option<&str> {
        most(self.iter().filter_map(|key| key.section.as_deref()), |known| strsim::jaro_winkler(section, known))
    }
}

/// The key that is most like an unknown one. Flags' names are known as well, and a key of the same section is meant rather
/// than one of another.
pub(super) fn nearest<'a>(
    keys: impl Iterator<Item = &'a Arc<Key>>,
    section: Option<&str>,
    name: &str,
) -> Option<&'a Arc<Key>> {
    let likeness = |key: &Key| {
        let named = strsim::jaro_winkler(name, &key.name).max(strsim::jaro_winkler(name, &key.long));
        if key.section.as_deref() == section { named } else { named * 0.9 }
    };
    most(keys, |key| likeness(key))
}

fn most<T: Copy>(all: impl Iterator<Item = T>, likeness: impl Fn(T) -> f64) -> Option<T> {
    all.max_by(|one, other| likeness(*one).total_cmp(&likeness(*other)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;
    use std::collections::BTreeMap;

    fn leaves(command: &Command) -> Vec<Command> {
        let inner: Vec<Command> = command.get_subcommands().flat_map(leaves).collect();
        if inner.is_empty() { vec![command.clone()] } else { inner }
    }

    #[test]
    fn keys_are_called_after_variables() {
        let two = |section: &str, name: &str| Some((Some(section.to_owned()), name.to_owned()));
        assert_eq!(place("OTELA_INGRESS_BODY_MIB_MAX"), two("ingress", "body_mib_max"));
        assert_eq!(place("OTELA_LOG_FORMAT"), two("log", "format"));
        assert_eq!(place("OTELA_THREADS"), Some((None, "threads".to_owned())));
        assert_eq!(place("OTELA_CONFIG"), None);
        assert_eq!(place("https_proxy"), None);
    }

    /// Goes through every flag of every command.
    #[test]
    fn every_variable_is_one_key_and_means_the_same_in_each_command() {
        let root = Cli::command();
        let keys = Keys::of(&root);
        let mut defaults = BTreeMap::new();
        let mut flags = 0;
        for command in std::iter::once(root.clone()).chain(leaves(&root)) {
            for flag in command.get_arguments() {
                let Some(variable) = flag.get_env().and_then(|name| name.to_str()) else { continue };
                let ours = variable.starts_with(PREFIX) && variable != OF_THE_FILE;
                assert_eq!(Key::of(flag).is_some(), ours, "{variable}: a key needs a long flag");
                let Some(key) = Key::of(flag) else { continue };
                flags += 1;
                let usual = matches!(flag.get_action(), ArgAction::Set | ArgAction::Append | ArgAction::SetTrue);
                assert!(usual, "{variable}: {:?} has no form in the file yet", flag.get_action());
                let one_value = flag.get_num_args().is_none_or(|values| values.max_values() <= 1);
                assert!(one_value, "{variable}: each value needs a flag of its own");
                assert_eq!(keys.find(key.section.as_deref(), &key.name).map(|known| &**known), Some(&key));
                let default = flag.get_default_values().to_vec();
                assert_eq!(defaults.entry(variable.to_owned()).or_insert(default.clone()), &default, "{variable}");
            }
        }
        assert!(flags > 40 && keys.iter().count() == defaults.len(), "{flags}");
    }

    #[test]
    fn no_name_is_two_things() {
        let keys = Keys::of(&Cli::command());
        let mut places: Vec<_> = keys.iter().map(|key| (&key.section, &key.name)).collect();
        places.sort();
        places.dedup();
        assert_eq!(places.len(), keys.iter().count());
        for top in keys.iter().filter(|key| key.section.is_none()) {
            assert!(!keys.has_section(&top.name), "{top} is a section too");
        }
        assert!(keys.find(Some("ingress"), "models").is_none(), "it is a table");
    }

    #[test]
    fn commands_have_their_own_keys_and_those_of_all() {
        let keys = Keys::of(&Cli::command());
        let has =
            |command: &str, variable: &str| keys.of_command(&[command.to_owned()]).any(|key| key.variable == variable);
        assert!(has("start", "OTELA_PEER_MESH") && has("start", "OTELA_THREADS") && has("start", "OTELA_PEER_TLS_CA"));
        assert!(!has("start", "OTELA_INGRESS_LISTEN") && has("ingress", "OTELA_INGRESS_LISTEN"));
        assert!(has("engine", "OTELA_LOG_FILTER") && !has("engine", "OTELA_PEER_MESH"));
        let open = keys.find(Some("ingress"), "open").unwrap();
        assert_eq!((open.kind, keys.command_with(open)), (Kind::Switch, &["ingress".to_owned()][..]));
        assert_eq!(keys.find(Some("peer"), "bootstrap").unwrap().kind, Kind::Many(Some(',')));
        assert!(keys.find(Some("ingress"), "body_mib_max").unwrap().is_number);
        assert!(!keys.find(Some("peer"), "site").unwrap().is_number);
    }

    #[test]
    fn what_was_meant_is_found() {
        let keys = Keys::of(&Cli::command());
        let near = |section, name| nearest(keys.iter(), section, name).unwrap().to_string();
        assert_eq!(near(Some("ingress"), "lisen"), "[ingress] listen");
        assert_eq!(near(Some("ingress"), "body-mib-max"), "[ingress] body_mib_max");
        assert_eq!(near(Some("peer"), "peer-listen"), "[peer] listen");
        assert_eq!(near(Some("peer"), "bootstraps"), "[peer] bootstrap");
        assert_eq!(near(Some("peer"), "body_mib_max"), "[ingress] body_mib_max");
        assert_eq!(near(None, "thread"), "threads");
        assert_eq!(near(None, "bootstrap"), "[peer] bootstrap");
        assert_eq!(keys.nearest_section("ingres"), Some("ingress"));
        assert_eq!(keys.nearest_section("peers"), Some("peer"));
    }
}
