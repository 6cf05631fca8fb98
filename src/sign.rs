//! The commands of maintainers and operators: keys, signatures, and what they are worth.

use crate::{
    cli::{KeyArgs, SignArgs, VerifyArgs},
    exit::{CommandError, say},
    look::{pairs, put},
};
use otela_node::{
    peer::{
        Identity,
        admission::{AdmissionError, Kind, MeshFile, OwnBinary, armor, digest, load_statement},
    },
    telemetry::chain,
};
use otela_proto::{
    Keypair, PeerId,
    admission::{BinaryDigest, Credentials, Membership, Refused, Release, Rules, StatementError, Validity},
    id::MeshName,
    wire::Signed,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Why nothing was signed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignError {
    /// The key cannot sign.
    #[error("cannot sign with this key")]
    Key(#[source] StatementError),
    /// There is something else where the statement is to be.
    #[error("there is something else in {path}, which is left alone: name another file with --out")]
    Taken { path: PathBuf },
    /// Nothing is there to be signed.
    #[error("{path} is empty: nothing to sign")]
    Empty { path: PathBuf },
    /// The statement cannot be written.
    #[error("cannot write {path}: name another file with --out")]
    Write { path: PathBuf, source: io::Error },
}

/// Makes or shows a key.
pub(crate) fn key(args: &KeyArgs) -> Result<ExitCode, CommandError> {
    let identity = if args.file.exists() {
        Identity::load(&args.file)?
    } else {
        let made = Identity::load_or_create(&args.file)?;
        say(&format!("otela: made a new key in {}: keep it safe, and a copy of it", args.file.display()));
        made
    };
    put(&format!("{}\n", identity.keypair().public().to_peer_id()))
}

/// Signs a binary or a membership.
pub(crate) fn sign(args: &SignArgs) -> Result<ExitCode, CommandError> {
    let identity = Identity::load(&args.key)?;
    let from = args.from.unwrap_or_else(SystemTime::now);
    let validity = Validity { from_ms: unix_ms(from), until_ms: unix_ms(from + args.valid_for) };
    let (out, text) = match (&args.member, &args.mesh) {
        (Some(member), Some(mesh)) => sign_member(identity.keypair(), mesh, member, validity)?,
        _ => sign_binary(identity.keypair(), args, validity)?,
    };
    let out = args.out.clone().unwrap_or(out);
    // What was said before is replaced, and nothing else.
    let kind = if args.member.is_some() { Kind::Membership } else { Kind::Release };
    if load_statement(&out, kind).is_err() {
        return Err(SignError::Taken { path: out }.into());
    }
    fs::write(&out, text).map_err(|source| SignError::Write { path: out.clone(), source })?;
    put(&format!("{}\n", out.display()))
}

fn sign_binary(key: &Keypair, args: &SignArgs, validity: Validity) -> Result<(PathBuf, String), CommandError> {
    let own = OwnBinary::running()?;
    let (image, out) = match &args.binary {
        Some(binary) => (binary.clone(), OwnBinary::beside(binary)),
        None => (own.image, own.statement),
    };
    let own_version = || env!("CARGO_PKG_VERSION").parse().expect("cargo checks it");
    let version = args.binary_version.clone().unwrap_or_else(own_version);
    let digest = digest(&image).map_err(|source| AdmissionError::Io { path: image.clone(), source })?;
    if digest == BinaryDigest::of(b"") {
        return Err(SignError::Empty { path: image }.into());
    }
    let signed = Release::sign(key, digest, &version, validity).map_err(SignError::Key)?;
    let release = Release::open(&signed).map_err(SignError::Key)?;
    Ok((out, armor(Kind::Release, &shown_release(&release), &signed)))
}

fn sign_member(
    key: &Keypair,
    mesh: &MeshName,
    member: &PeerId,
    validity: Validity,
) -> Result<(PathBuf, String), CommandError> {
    let signed = Membership::sign(key, mesh, member, validity).map_err(SignError::Key)?;
    let membership = Membership::open(&signed, mesh).map_err(SignError::Key)?;
    let text = armor(Kind::Membership, &shown_membership(&membership, mesh), &signed);
    Ok((format!("{member}.membership").into(), text))
}

/// Checks a binary or a membership, by itself and by the rules of a mesh.
pub(crate) fn verify(args: &VerifyArgs) -> Result<ExitCode, CommandError> {
    let rules = args.mesh_file.as_deref().map(MeshFile::load).transpose()?.map(|file| file.rules);
    let outcome = match (&args.membership, &rules) {
        (Some(path), Some(rules)) => verify_membership(path, rules),
        _ => verify_binary(args, rules.as_ref()),
    };
    let (mut rows, verdict) = match outcome {
        Ok((rows, verdict)) => (rows, verdict.map_err(|refused| refused.to_string())),
        // What is said is not of this binary, or of nobody: that is an answer too.
        Err(CommandError::Admission(
            error @ (AdmissionError::AnotherBinary { .. }
            | AdmissionError::BadStatement { .. }
            | AdmissionError::NotAStatement { .. }),
        )) => (Vec::new(), Err(chain(&error))),
        Err(error) => return Err(error),
    };
    let mesh =
        rules.map_or_else(|| "nobody's rules were given (--mesh-file)".to_owned(), |rules| rules.mesh.to_string());
    rows.push(("mesh", mesh));
    let (word, code) = match verdict {
        Ok(()) => ("good".to_owned(), ExitCode::SUCCESS),
        Err(why) => (format!("not good: {why}"), ExitCode::FAILURE),
    };
    rows.push(("verdict", word));
    put(&pairs(rows))?;
    Ok(code)
}

/// The end of the year 9999: nothing later can be written as a date.
const LAST_SHOWN_MS: u64 = 253_402_300_799_000;

type Rows = Vec<(&'static str, String)>;

fn verify_binary(args: &VerifyArgs, rules: Option<&Rules>) -> Result<(Rows, Result<(), Refused>), CommandError> {
    let mut binary = OwnBinary::running()?;
    if let Some(image) = &args.binary {
        binary = OwnBinary { image: image.clone(), statement: OwnBinary::beside(image) };
    }
    if let Some(statement) = &args.release {
        binary.statement.clone_from(statement);
        if !statement.exists() {
            return Err(AdmissionError::Missing { path: statement.clone() }.into());
        }
    }
    // Nothing is said of what cannot be read.
    digest(&binary.image).map_err(|source| AdmissionError::Io { path: binary.image.clone(), source })?;
    let release = match binary.release()? {
        Some(signed) => Some(
            Release::open(&signed)
                .map_err(|source| AdmissionError::BadStatement { path: binary.statement.clone(), source })?,
        ),
        None => None,
    };
    let shown = args.binary.clone().map_or_else(std::env::current_exe, Ok)?;
    let mut rows = vec![("binary", shown.display().to_string())];
    match &release {
        Some(release) => rows.extend(shown_release(release)),
        None => rows.push(("statement", format!("none: there is no {}", binary.statement.display()))),
    }
    let by_itself = |release: Option<&Release>| match release {
        None => Err(Refused::Unsigned),
        Some(release) if release.validity.has_ended(unix_ms(SystemTime::now())) => Err(Refused::Expired),
        Some(release) if release.validity.begins_after(unix_ms(SystemTime::now())) => Err(Refused::NotYetValid),
        Some(_) => Ok(()),
    };
    let verdict = match rules {
        None => by_itself(release.as_ref()),
        // Of the peer nothing is known: only what is said of the binary is looked at.
        Some(rules) => {
            let rules = Rules { authorities: Default::default(), ..rules.clone() };
            let credentials = Credentials { release, membership: None };
            rules.judge(&PeerId::random(), &credentials, unix_ms(SystemTime::now()))
        }
    };
    Ok((rows, verdict))
}

fn verify_membership(path: &Path, rules: &Rules) -> Result<(Rows, Result<(), Refused>), CommandError> {
    let missing = || AdmissionError::Missing { path: path.to_owned() };
    let signed: Signed = load_statement(path, Kind::Membership)?.ok_or_else(missing)?;
    let bad = |source| AdmissionError::BadStatement { path: path.to_owned(), source };
    let membership = Membership::open(&signed, &rules.mesh).map_err(bad)?;
    let rows = shown_membership(&membership, &rules.mesh);
    let rules = Rules { require_signed: false, ..rules.clone() };
    let (member, credentials) = (membership.member, Credentials { release: None, membership: Some(membership) });
    Ok((rows, rules.judge(&member, &credentials, unix_ms(SystemTime::now()))))
}

fn shown_release(release: &Release) -> Rows {
    vec![
        ("version", release.version.to_string()),
        ("digest", release.digest.to_string()),
        ("valid", shown_validity(release.validity)),
        ("key", release.key.to_string()),
    ]
}

fn shown_membership(membership: &Membership, mesh: &MeshName) -> Rows {
    vec![
        ("member", membership.member.to_string()),
        ("of mesh", mesh.to_string()),
        ("valid", shown_validity(membership.validity)),
        ("key", membership.authority.to_string()),
    ]
}

fn shown_validity(validity: Validity) -> String {
    let shown = |ms: u64| {
        let at = UNIX_EPOCH + Duration::from_millis(ms.min(LAST_SHOWN_MS));
        humantime::format_rfc3339_seconds(at).to_string()
    };
    format!("{} to {}", shown(validity.from_ms), shown(validity.until_ms))
}

fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
