//! The commands of maintainers, operators and providers: keys, signatures, and what they are worth.

mod verify;

pub(crate) use verify::verify;

use crate::{
    cli::{KeyArgs, SignArgs},
    exit::{CommandError, say},
    look::put,
};
use otela_node::peer::{
    Identity,
    admission::{AdmissionError, Kind, OwnBinary, armor, digest, load_statement},
};
use otela_proto::{
    Keypair, PeerId,
    admission::{BinaryDigest, Membership, Release, StatementError, Validity},
    id::MeshName,
    provider::{ProviderCertificate, Terms, Unproven},
};
use std::{
    collections::BTreeMap,
    fs, io,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Why nothing was signed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignError {
    /// The key cannot sign.
    #[error("cannot sign with this key")]
    Key(#[source] StatementError),
    /// No certificate can be made of that.
    #[error("cannot sign this certificate")]
    Certificate(#[source] Unproven),
    /// A label with two values.
    #[error("two values of one label: give each --constraint a label of its own")]
    TwoValues,
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

/// Signs a binary, a membership, or for whom a node is run.
pub(crate) fn sign(args: &SignArgs) -> Result<ExitCode, CommandError> {
    let identity = Identity::load(&args.key)?;
    let from = args.from.unwrap_or_else(SystemTime::now);
    let validity = Validity { from_ms: unix_ms(from), until_ms: unix_ms(from + args.valid_for) };
    let key = identity.keypair();
    let (kind, (out, text)) = match (&args.member, &args.provider_of, &args.mesh) {
        (Some(member), _, Some(mesh)) => (Kind::Membership, sign_member(key, mesh, member, validity)?),
        (_, Some(subject), _) => (Kind::Provider, sign_node(key, args, *subject, validity)?),
        _ => (Kind::Release, sign_binary(key, args, validity)?),
    };
    let out = args.out.clone().unwrap_or(out);
    // What was said before is replaced, and nothing else.
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

fn sign_node(
    key: &Keypair,
    args: &SignArgs,
    subject: PeerId,
    validity: Validity,
) -> Result<(PathBuf, String), CommandError> {
    let constraints: BTreeMap<_, _> = args.constraint.iter().cloned().collect();
    if constraints.len() < args.constraint.len() {
        return Err(SignError::TwoValues.into());
    }
    let terms = Terms { subject, mesh: args.mesh.clone(), constraints, validity };
    let signed = ProviderCertificate::sign(key, &terms).map_err(SignError::Certificate)?;
    let certificate = ProviderCertificate::open_signed(&signed).map_err(SignError::Certificate)?;
    let text = armor(Kind::Provider, &shown_certificate(&certificate), &signed);
    Ok((format!("{subject}.provider").into(), text))
}

/// The end of the year 9999: nothing later can be written as a date.
const LAST_SHOWN_MS: u64 = 253_402_300_799_000;

/// Names, and what belongs to them.
type Rows = Vec<(&'static str, String)>;

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

fn shown_certificate(certificate: &ProviderCertificate) -> Rows {
    let terms = certificate.terms();
    let mesh = terms.mesh.as_ref().map_or_else(|| "any".to_owned(), MeshName::to_string);
    let mut rows = vec![
        ("provider", certificate.provider().to_string()),
        ("of peer", terms.subject.to_string()),
        ("in mesh", mesh),
    ];
    // A line of its own must not be made of a label.
    let labels = terms.constraints.iter().map(|(label, value)| format!("{label}={value}").escape_debug().to_string());
    rows.extend(labels.map(|label| ("with label", label)));
    rows.push(("valid", shown_validity(terms.validity)));
    rows
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
