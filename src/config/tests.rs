use super::{
    check, complete,
    file::{File, FileError},
    keys::Keys,
    line::innermost,
    parse, show,
};
use crate::cli::{Cli, Command as Run};
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory};
use otela_ingress::{ModelSettings, Policy, Settings};
use std::{ffi::OsString, path::Path, time::Duration};
use tempfile::TempDir;

/// A directory with the file `otela.toml`.
fn dir(text: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, text);
    dir
}

fn write(dir: &TempDir, text: &str) {
    std::fs::write(dir.path().join("otela.toml"), text).unwrap();
}

/// The words of a command line, with the file's path for FILE.
fn words(line: &str, dir: &TempDir) -> Vec<OsString> {
    let file = dir.path().join("otela.toml");
    line.split(' ').map(|word| word.replace("FILE", file.to_str().unwrap()).into()).collect()
}

/// What a command line comes to with a file.
fn outcome(root: &Command, line: &str, text: &str) -> Result<ArgMatches, String> {
    let dir = dir(text);
    match complete(root, &words(line, &dir)) {
        Ok((matches, _)) => Ok(innermost(&matches).clone()),
        Err(error) => Err(error.to_string().replace(&dir.path().display().to_string(), "DIR")),
    }
}

/// The values of a flag.
fn values(matches: &ArgMatches, id: &str) -> Vec<String> {
    matches.get_raw(id).into_iter().flatten().map(|value| value.to_str().unwrap().to_owned()).collect()
}

fn told(line: &str, text: &str, id: &str) -> Vec<String> {
    values(&outcome(&Cli::command(), line, text).unwrap(), id)
}

/// Everything that is wrong with a file, without its path.
fn offences(text: &str) -> Vec<String> {
    let root = Cli::command();
    let offences = File::of_text(text, Path::new("F"), &root, &Keys::of(&root)).err().unwrap_or_default();
    offences.iter().map(ToString::to_string).collect()
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let file = "threads = 3\n[peer]\nmesh = 'filed'\nbootstrap = ['a:1', 'b:2']\ngrace = '7s'\n[log]\nformat = 'json'";
    let line = "otela start --config FILE";
    assert_eq!(told(line, file, "mesh"), ["filed"]);
    assert_eq!(told(line, file, "bootstrap"), ["a:1", "b:2"]);
    assert_eq!(told(line, file, "threads"), ["3"]);
    assert_eq!(told(line, file, "format"), ["json"]);
    assert_eq!(told(line, file, "grace"), ["7s"]);
    assert_eq!(told(line, file, "grace_far"), ["15s"]);
    assert_eq!(told("otela start --config FILE --mesh named", file, "mesh"), ["named"]);
    assert_eq!(told("otela start --mesh=named --config=FILE", file, "mesh"), ["named"]);
    // A list is not added to another.
    assert_eq!(told("otela start --bootstrap c:3 --config FILE", file, "bootstrap"), ["c:3"]);
    assert_eq!(told("otela --log-format text --config FILE --threads 5 relay", file, "format"), ["text"]);
    assert_eq!(told("otela --log-format text --config FILE --threads 5 relay", file, "threads"), ["5"]);
    assert_eq!(told("otela --log-format text --config FILE --threads 5 relay", file, "mesh"), ["filed"]);
    assert_eq!(told("otela start", file, "mesh"), [""; 0]);
}

#[test]
fn each_command_takes_what_it_has() {
    let file = "[ingress]\nlisten = '127.0.0.1:1'\n[start]\nlabels = ['a=b', 'c=d']\n[observe]\nlisten = '127.0.0.1:2'\n\
                [relay]\ncircuits_max = 9\n[sign]\nkey = 'k'";
    assert_eq!(told("otela ingress --config FILE", file, "listen"), ["127.0.0.1:1"]);
    assert_eq!(told("otela start --config FILE", file, "labels"), ["a=b", "c=d"]);
    assert_eq!(told("otela start --config FILE", file, "http"), ["127.0.0.1:2"]);
    assert_eq!(told("otela relay --config FILE", file, "http"), ["127.0.0.1:2"]);
    assert_eq!(told("otela relay --config FILE", file, "circuits_max"), ["9"]);
    // What is needed may be in the file.
    assert_eq!(told("otela sign --config FILE", file, "key"), ["k"]);
    assert_eq!(told("otela nodes --config FILE", "url = 'http://h:1'", "url"), ["http://h:1"]);
    assert_eq!(told("otela doctor --config FILE", "[peer]\nmesh = 'm'", "mesh"), ["m"]);
}

#[test]
fn what_belongs_to_the_engine_stays_its_own() {
    let line = "otela start --config FILE --process engine --config other --mesh x";
    let file = "[peer]\nmesh = 'filed'";
    assert_eq!(told(line, file, "process"), ["engine", "--config", "other", "--mesh", "x"]);
    assert_eq!(told(line, file, "mesh"), ["filed"]);
    assert_eq!(told("otela start --process engine --config nowhere", file, "mesh"), [""; 0]);
}

#[test]
fn values_of_every_form() {
    let listed = |text: &str| told("otela start --config FILE", text, "bootstrap");
    assert_eq!(listed("peer.bootstrap = 'a:1,b:2'"), ["a:1", "b:2"]);
    assert_eq!(listed("peer.bootstrap = []"), [""; 0]);
    let open = |text: &str| outcome(&Cli::command(), "otela ingress --config FILE", text).unwrap().get_flag("open");
    assert!(open("[ingress]\nopen = true") && !open("[ingress]\nopen = false") && !open(""));
    let mib = |text: &str| told("otela ingress --config FILE", text, "body_mib_max");
    assert_eq!(mib("ingress.body_mib_max = 0x10"), ["16"]);
    assert_eq!(mib("ingress.body_mib_max = 1_024"), ["1024"]);
    assert_eq!(mib("ingress.body_mib_max = '12'"), ["12"]);
    let site = |text: &str| told("otela start --config FILE", text, "site");
    assert_eq!(site("peer.site = 1979-05-27T07:32:00Z"), ["1979-05-27T07:32:00Z"]);
    assert_eq!(site("peer.site = 0.5"), ["0.5"]);
    assert_eq!(site("peer.site = '--x = \"y\"'"), ["--x = \"y\""]);
}

#[test]
fn everything_that_is_wrong_is_said_with_its_line() {
    let text = "thread = 3\ningress = 4\n\n[ingres]\nlisten = '127.0.0.1:0'\n[peer]\nlisten = 'nowhere'\nbody_mib_max = 3\n\
                mesh = ['a']\nbootstrap = [\n  'a:1',\n  'b',\n]\n[log]\nformat = 'xml'\n[start]\ndrain = 'soon'\nlabels = ['a=b,c=d']";
    let said = offences(text);
    let expected = [
        "F:1: thread is not known; the nearest that is: threads",
        "F:2: ingress is a section: write [ingress] and its keys below",
        "F:4: section [ingres] is not known; the nearest that is: [ingress]",
        "F:7: [peer] listen cannot be \"nowhere\": ",
        "F:8: [peer] body_mib_max is not known; the nearest that is: [ingress] body_mib_max",
        "F:9: [peer] mesh has one value, not a list",
        "F:12: [peer] bootstrap cannot be \"b\": ",
        "F:15: [log] format cannot be \"xml\": it is text or json",
        "F:17: [start] drain cannot be \"soon\": ",
        "F:18: [start] labels cannot have \"a=b,c=d\" in its list: ",
    ];
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.starts_with(expected) && (said.len() > expected.len() || !said.ends_with(' ')), "{said}");
    }
}

#[test]
fn values_are_judged_by_their_flags() {
    let only = |text: &str| match offences(text).as_slice() {
        [only] => only.clone(),
        other => panic!("{text}: {other:?}"),
    };
    for (text, says) in [
        ("threads = 0", "F:1: threads cannot be \"0\": not a number from 1 to 1024"),
        ("peer.grace = '1ms'", "F:1: [peer] grace cannot be \"1ms\": shorter than 1s"),
        ("ingress.body_mib_max = 9999", "F:1: [ingress] body_mib_max cannot be \"9999\": 9999 is not in 1..=4096"),
        ("ingress.open = 'yes'", "F:1: [ingress] open is true or false, without quotation marks"),
        ("peer.key = ''", "F:1: [peer] key cannot be \"\": it is empty"),
        ("peer.mesh = {}", "F:1: [peer] mesh has a value, not a table"),
        ("threads = {}", "F:1: threads has a value, not a table"),
        ("peer.bootstrap = [['a:1']]", "F:1: [peer] bootstrap has values, not lists, in its list"),
        ("[[peer]]", "F:1: peer is a section: write [peer] and its keys below"),
        ("config = 'other'", "F:1: config is not known; the nearest that is: "),
        ("peer.mesh = 'a'\npeer.mesh = 'b'", "F:2: not TOML: duplicate key"),
        ("\n\npeer.mesh = ", "F:3: not TOML: "),
        ("[peer\nmesh = 'a'", "F:1: not TOML: "),
        ("ingress.policy = 'clever'", "clever"),
    ] {
        assert!(only(text).contains(says), "{text}: {}", only(text));
    }
}

#[test]
fn files_that_cannot_be_read() {
    let dir = dir("");
    let read = |name: &str| parse(&["otela", "start", "--config", name].map(OsString::from)).unwrap_err();
    let missing = dir.path().join("missing");
    let error = read(missing.to_str().unwrap());
    assert!(error.to_string().contains(missing.to_str().unwrap()), "{error}");
    assert!(read(dir.path().to_str().unwrap()).to_string().contains("cannot read"));
    std::fs::write(&missing, b"[peer]\nsite = '\xff'").unwrap();
    assert!(read(missing.to_str().unwrap()).to_string().contains("cannot read"));
}

#[test]
fn the_first_offence_is_told_and_how_many_more_there_are() {
    let said = outcome(&Cli::command(), "otela start --config FILE", "a = 1\nb = 2\nc = 3").unwrap_err();
    assert!(said.starts_with("DIR/otela.toml:1: a is") && said.contains("2 more: otela config check DIR"), "{said}");
    // The other commands' sections are checked as well, and a flag does not make a wrong value good.
    let said = outcome(&Cli::command(), "otela start --config FILE", "[ingress]\nkeep_alive = '1ms'").unwrap_err();
    assert!(said.contains("[ingress] keep_alive"), "{said}");
    let said = outcome(&Cli::command(), "otela start --config FILE --grace 3s", "peer.grace = 'x'").unwrap_err();
    assert!(said.contains("[peer] grace"), "{said}");
}

#[test]
fn the_command_lines_own_errors_stay_its_own() {
    let file = "[peer]\nmesh = 'filed'\nkey = 'k'";
    let said = |line: &str| outcome(&Cli::command(), line, file).unwrap_err();
    assert!(said("otela start --config FILE --nonsense").contains("--nonsense"));
    assert!(said("otela start --config FILE --grace x").contains("--grace"));
    assert!(said("otela --config FILE frobnicate").contains("frobnicate"));
    assert!(said("otela probe --config FILE").contains("<PEER>"));
    let said = said("otela start --config FILE --membership m");
    assert!(said.contains("--mesh-file") && !said.contains("  --key") && !said.contains("DIR"), "{said}");
    assert!(outcome(&Cli::command(), "otela start --help --config FILE", "bad").unwrap_err().contains("Usage"));
}

#[test]
fn what_a_key_needs_is_needed_in_the_file_too() {
    let root = Cli::command();
    let membership = "[peer]\n\nmembership = 'm'";
    let said = outcome(&root, "otela start --config FILE", membership).unwrap_err();
    assert_eq!(said, "DIR/otela.toml:3: [peer] membership needs [peer] key and [peer] mesh_file too");
    let said = outcome(&root, "otela start --config FILE --key k", membership).unwrap_err();
    assert_eq!(said, "DIR/otela.toml:3: [peer] membership needs [peer] mesh_file too");
    assert!(outcome(&root, "otela start --config FILE --key k --mesh-file f", membership).is_ok());
    let all = "[peer]\nmembership = 'm'\nkey = 'k'\nmesh_file = 'f'";
    assert!(outcome(&root, "otela start --config FILE", all).is_ok());
    assert!(outcome(&root, "otela start --config FILE --membership n", all).is_ok());
    // The other commands do not have it.
    assert!(outcome(&root, "otela engine m --config FILE", membership).is_ok());
}

/// Flags that exclude each other, and a command inside a command.
fn toy() -> Command {
    let flag =
        |long: &'static str, variable: &'static str| Arg::new(long).long(long).env(variable).action(ArgAction::Set);
    let run = Command::new("run")
        .arg(flag("fast", "OTELA_TOY_FAST").conflicts_with("cheap").conflicts_with("plain"))
        .arg(flag("cheap", "OTELA_TOY_CHEAP"))
        .arg(Arg::new("plain").long("plain").action(ArgAction::SetTrue))
        .arg(Arg::new("rest").num_args(0..).trailing_var_arg(true));
    Command::new("toy")
        .arg(flag("config", "OTELA_CONFIG").global(true).value_parser(clap::value_parser!(std::path::PathBuf)))
        .arg(Arg::new("loud").long("loud").global(true).action(ArgAction::SetTrue))
        .subcommand(Command::new("group").subcommand(run))
}

#[test]
fn what_excludes_another_does_so_in_the_file_too() {
    let said = |line: &str, text: &str| outcome(&toy(), line, text);
    let both = said("toy group run --config FILE", "[toy]\ncheap = 1\nfast = 2").unwrap_err();
    assert!(
        both.contains("[toy] fast") && both.contains("cannot be together with") && both.contains("[toy] cheap"),
        "{both}"
    );
    let flag = said("toy group run --plain --config FILE", "[toy]\nfast = 2").unwrap_err();
    assert_eq!(flag, "DIR/otela.toml:2: [toy] fast cannot be together with --plain");
    let flags = said("toy group run --plain --fast 1 --config FILE", "").unwrap_err();
    assert!(!flags.contains("DIR"), "{flags}");
}

#[test]
fn commands_inside_commands_are_given_their_keys() {
    let matches =
        outcome(&toy(), "toy --loud --config FILE group --loud run group run --fast", "toy.fast = 3").unwrap();
    assert_eq!(values(&matches, "fast"), ["3"]);
    assert_eq!(values(&matches, "rest"), ["group", "run", "--fast"]);
}

#[test]
fn a_file_is_read_anew_each_time() {
    let dir = dir("[ingress]\ndrain = '1s'");
    let argv = words("otela ingress --config FILE", &dir);
    let drain = || match parse(&argv)?.cli.command {
        Run::Ingress(args) => Ok(args.drain.as_secs()),
        other => panic!("{other:?}"),
    };
    assert_eq!(drain().unwrap(), 1);
    write(&dir, "[ingress]\ndrain = '2s'");
    assert_eq!(drain().unwrap(), 2);
    write(&dir, "[ingress]\ndrain = 'soon'");
    let error: super::ParseError = drain().unwrap_err();
    assert!(error.to_string().contains("[ingress] drain"), "{error}");
    write(&dir, "");
    assert_eq!(drain().unwrap(), 30);
}

/// What the settings of an ingress are with a file.
fn settings(line: &str, text: &str) -> Settings {
    let dir = dir(text);
    match parse(&words(line, &dir)).unwrap().cli.command {
        Run::Ingress(args) => args.config().unwrap().settings,
        other => panic!("{other:?}"),
    }
}

#[test]
fn models_have_tables_of_their_own() {
    let text = "[ingress]\nretries_max = 7\nno_resume = true\nanswer_within = '9s'\n[ingress.models.'Qwen/Qwen3-8B']\n\
                policy = 'affinity'\nretries_max = 0x1\nanswer_within = 'never'\nstall_within = '2s'\nhedge_after = '3s'\n\
                in_flight_max = 4\nqueue_max = '5'\nqueue_within = '6s'\nresume = true\n[ingress.models]\nm = {resume = false}\ne = {}";
    let settings = settings("otela ingress --config FILE --answer-within 8s", text);
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let expected = ModelSettings {
        policy: Policy::Affinity,
        retries_max: 1,
        answer_within: None,
        stall_within: seconds(2),
        hedge_after: seconds(3),
        in_flight_max: 4,
        queue_max: 5,
        queue_within: Duration::from_secs(6),
        resume: true,
    };
    assert_eq!(settings.of("Qwen/Qwen3-8B"), &expected);
    let usual = settings.of("another");
    assert_eq!((usual.retries_max, usual.answer_within, usual.resume), (7, seconds(8), false));
    assert_eq!((settings.of("m"), settings.of("e"), settings.models.len()), (usual, usual, 3));
}

#[test]
fn the_keys_of_models_are_checked_like_others() {
    let text = "[ingress.models.'a/b']\nalias = 'x'\npolice = 'p2c'\npolicy = 'clever'\nanswer_within = 0\nin_flight_max = 0\n\
                queue_max = -1\nqueue_within = ['1s']\nresume = 'on'\nno_resume = true\nlisten = '127.0.0.1:0'\n\
                [ingress.models.Qwen3-1.7B]\npolicy = 'p2c'\n[ingress.models.h]\npolicy = 'help'\n[ingress]\npolicy = 'help'";
    let said = offences(text);
    let expected = [
        "F:2: [ingress.models.\"a/b\"] alias is not known; the nearest that is: ",
        "F:3: [ingress.models.\"a/b\"] police is not known; the nearest that is: [ingress.models.\"a/b\"] policy",
        "F:4: [ingress.models.\"a/b\"] policy cannot be \"clever\": ",
        "F:5: [ingress.models.\"a/b\"] answer_within cannot be \"0\": 0 would end everything at once",
        "F:6: [ingress.models.\"a/b\"] in_flight_max cannot be \"0\": 0 is not in 1..",
        "F:7: [ingress.models.\"a/b\"] queue_max cannot be \"-1\": ",
        "F:8: [ingress.models.\"a/b\"] queue_within has one value, not a list",
        "F:9: [ingress.models.\"a/b\"] resume is true or false, without quotation marks",
        "F:10: [ingress.models.\"a/b\"] no_resume is not known; the nearest that is: [ingress.models.\"a/b\"] resume",
        "F:11: [ingress.models.\"a/b\"] listen is not known; the nearest that is: [ingress] listen",
        "F:12: [ingress.models.\"Qwen3-1\"] 7B is a table: quote a model's id that has a dot",
        "F:15: [ingress.models.\"h\"] policy cannot be \"help\": it is for the command line",
        "F:17: [ingress] policy cannot be \"help\": it is for the command line",
    ];
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.starts_with(expected), "{said}\n{expected}");
    }
    assert!(offences("[ingress.models]\nm = 3")[0].starts_with("F:2: \"m\" needs a table: [ingress.models.\"m\"]"));
    assert!(offences("[ingress]\nmodels = 'm'")[0].contains("a table for each model: [ingress.models.\"ID\"]"));
    assert!(
        offences("[ingress.models.'']\nqueue_max = 1")[0].starts_with("F:1: [ingress.models] no model has an empty id")
    );
    // A table is told of as it has to be written.
    assert!(offences("[ingress.models.'\"']\nx = 1")[0].starts_with("F:2: [ingress.models.'\"'] x"));
}

fn shown(line: &str, text: &str) -> String {
    let dir = dir(text);
    let words = if line.is_empty() { Vec::new() } else { words(line, &dir) };
    let shown = show::text(&Cli::command(), &words, Some(&dir.path().join("otela.toml"))).unwrap();
    shown.replace(&dir.path().display().to_string(), "DIR")
}

#[test]
fn what_is_shown_says_where_it_comes_from() {
    let text =
        "threads = 2\n[peer]\nbootstrap = ['a:1', 'b:2']\nmesh = 'filed'\n[ingress]\nopen = true\nretries_max = 5";
    let all = shown("ingress --mesh named", text);
    for line in [
        "threads = 2 # DIR/otela.toml:1",
        "[peer]",
        "mesh = \"named\" # --mesh",
        "bootstrap = [\"a:1\", \"b:2\"] # DIR/otela.toml:3",
        "# key is not set",
        "grace = \"5s\" # default",
        "[ingress]",
        "open = true # DIR/otela.toml:6",
        "retries_max = 5 # DIR/otela.toml:7",
        "body_mib_max = 64 # default",
    ] {
        assert!(all.lines().any(|shown| shown == line), "{line}\n{all}");
    }
    assert!(!all.contains("[start]"), "{all}");
    let models = shown("ingress", "[ingress.models.m]\nresume = true\n\nretries_max = 1");
    let table = "[ingress.models.\"m\"]\nresume = true # DIR/otela.toml:2\nretries_max = 1 # DIR/otela.toml:4\n";
    assert!(models.ends_with(table), "{models}");
    assert!(!shown("relay", "[ingress.models.m]\nresume = true").contains("models"));
    assert!(shown("", text).contains("[start]") && shown("", text).contains("[relay]"));
    // Shown though a peer is missing.
    assert!(shown("probe", text).contains("mesh = \"filed\""));
}

#[test]
fn what_is_shown_is_a_file_that_says_the_same() {
    let text = "threads = 2\n[log]\nfilter = 'info,otela=debug'\n[peer]\nbootstrap = ['a:1', 'b:2']\nmesh = 'filed'\n\
                site = \"a 'b' \\\"c\\\" \\\\ # d\\n\"\nannounce = '!hsn0'\n[ingress]\nopen = true\nretries_max = 5\n\
                [ingress.models.'a/b c']\npolicy = 'p2c'\nqueue_max = 0x10\nresume = false\n[ingress.models.d]\n\
                [ingress.models.\"\\\"'\\u001b\\n\"]\nhedge_after = '3s'\n[start]\nlabels = ['a=b', 'c=d']\nlinger = '3s'\n[relay]\n\
                circuit_bytes_max = 7";
    for line in ["", "start", "ingress", "relay", "start --site 7 --peer-listen 127.0.0.1:0"] {
        let first = shown(line, text);
        let again = shown(line.split(' ').next().unwrap(), &first);
        let table = |text: &str| toml::from_str::<toml::Table>(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(table(&first), table(&again), "{line}\n{first}\n{again}");
    }
    assert_eq!(shown("", text).matches("[ingress.models.").count(), 3);
    assert!(offences(&shown("", text)).is_empty());
}

/// The examples of docs/configuration.md are files that can be used, and its sections are those there are.
#[test]
fn what_is_written_about_files_is_so() {
    let text = include_str!("../../docs/configuration.md");
    let examples: Vec<&str> = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 4);
    for example in examples {
        assert_eq!(offences(example), [""; 0], "{example}");
    }
    for key in Keys::of(&Cli::command()).iter() {
        let named = key.section.as_ref().map_or_else(|| format!("`{}`", key.name), |section| format!("`[{section}]`"));
        assert!(text.contains(&named), "{named} is not told of");
    }
}

#[test]
fn a_check_finds_what_does_not_go_together() {
    let dir = dir("[peer]\ntls_cert = 'c'\n[ingress]\nopen = true");
    let check = || match check::offences(&Cli::command(), &dir.path().join("otela.toml")) {
        Ok(()) => Vec::new(),
        Err(FileError::Wrong(offences)) => offences.iter().map(ToString::to_string).collect(),
        Err(error) => panic!("{error}"),
    };
    let found: Vec<String> = check();
    assert!(found.len() == 1 && found[0].ends_with(":2: [peer] tls_cert needs [peer] tls_key too"), "{found:?}");
    write(&dir, "[peer]\ntls_cert = 'c'\ntls_key = 'k'");
    assert_eq!(check(), [""; 0]);
    write(&dir, "[ingress]\ndrain = '1s'\nlisten = '0.0.0.0:0'");
    let found: Vec<String> = check();
    assert!(found.len() == 1 && found[0].contains(":3: [ingress] listen: 0.0.0.0:0 can be reached"), "{found:?}");
    write(&dir, "[ingress]\nopen = true\nlisten = '0.0.0.0:0'");
    assert_eq!(check(), [""; 0]);
}
