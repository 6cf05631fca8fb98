//! What is said of a binary, a member or a provider's node, and what it is worth.

use super::{Rows, shown_certificate, shown_membership, shown_release, unix_ms};
use crate::{
    cli::VerifyArgs,
    exit::CommandError,
    look::{pairs, put},
};
use otela_node::{
    peer::admission::{AdmissionError, Kind, MeshFile, OwnBinary, digest, load_statement},
    telemetry::chain,
};
use otela_proto::{
    PeerId,
    admission::{Credentials, Membership, Refused, Release, Rules},
    provider::{ProviderCertificate, ProviderRules},
    wire::Signed,
};
use std::{path::Path, process::ExitCode, time::SystemTime};

/// What is said, and whether it counts.
type Outcome = Result<(Rows, Result<(), String>), CommandError>;

/// Checks a binary, a membership or a provider certificate, by itself and by the rules of a mesh.
pub(crate) fn verify(args: &VerifyArgs) -> Result<ExitCode, CommandError> {
    let rules = args.mesh_file.as_deref().map(MeshFile::load).transpose()?.map(|file| file.rules);
    let outcome = match (&args.membership, &args.provider, &rules) {
        (Some(path), _, Some(rules)) => verify_membership(path, rules),
        (_, Some(path), rules) => verify_certificate(path, rules.as_ref()),
        _ => verify_binary(args, rules.as_ref()),
    };
    let (mut rows, verdict) = match outcome {
        Ok(said) => said,
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

fn verify_binary(args: &VerifyArgs, rules: Option<&Rules>) -> Outcome {
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
    Ok((rows, verdict.map_err(|refused| refused.to_string())))
}

fn verify_membership(path: &Path, rules: &Rules) -> Outcome {
    let missing = || AdmissionError::Missing { path: path.to_owned() };
    let signed: Signed = load_statement(path, Kind::Membership)?.ok_or_else(missing)?;
    let bad = |source| AdmissionError::BadStatement { path: path.to_owned(), source };
    let membership = Membership::open(&signed, &rules.mesh).map_err(bad)?;
    let rows = shown_membership(&membership, &rules.mesh);
    let rules = Rules { require_signed: false, ..rules.clone() };
    let (member, credentials) = (membership.member, Credentials { release: None, membership: Some(membership) });
    let verdict = rules.judge(&member, &credentials, unix_ms(SystemTime::now()));
    Ok((rows, verdict.map_err(|refused| refused.to_string())))
}

fn verify_certificate(path: &Path, rules: Option<&Rules>) -> Outcome {
    let missing = || AdmissionError::Missing { path: path.to_owned() };
    let signed = load_statement(path, Kind::Provider)?.ok_or_else(missing)?;
    let certificate = match ProviderCertificate::open_signed(&signed) {
        Ok(certificate) => certificate,
        Err(why) => return Ok((Vec::new(), Err(why.to_string()))),
    };
    let terms = certificate.terms();
    // Of the node nothing is known but that it is the one that is meant; nor of the mesh, where no rules were given.
    let of_itself = || ProviderRules::new(terms.mesh.clone().unwrap_or_else(|| "any".parse().expect("it is a name")));
    let rules = rules.map_or_else(of_itself, ProviderRules::from);
    let now_ms = unix_ms(SystemTime::now());
    let verdict = certificate.verify(&terms.subject, &terms.constraints, &rules, now_ms);
    Ok((shown_certificate(&certificate), verdict.map(drop).map_err(|why| why.to_string())))
}
