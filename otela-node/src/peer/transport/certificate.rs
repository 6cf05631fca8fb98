//! What is wrong with a certificate, in words for whoever can mend it.

use libp2p_websocket::tls;
use otela_proto::admission::Validity;
use rustls::CertificateError;
use rustls_pki_types::UnixTime;
use std::{
    error::Error,
    io,
    time::{Duration, UNIX_EPOCH},
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// Why the certificate of the other side is not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadCertificate {
    #[error("its certificate has expired{0}")]
    Expired(String),
    #[error("its certificate is not valid yet{0}: compare the clocks of both sides")]
    NotYetValid(String),
    #[error("its certificate is for other names: {0}")]
    OtherName(CertificateError),
    #[error("its certificate is signed by nobody who is trusted here (a site's own authority is given with --tls-ca)")]
    UnknownIssuer,
    #[error("its certificate is not accepted (a site's own authority is given with --tls-ca)")]
    Other(#[source] tls::Error),
    #[error("no TLS comes about: perhaps none is spoken there, or too many others connect")]
    NoTls(#[source] tls::Error),
}

impl From<tls::Error> for BadCertificate {
    fn from(error: tls::Error) -> Self {
        match certificate_error(&error).cloned() {
            Some(CertificateError::Expired) => Self::Expired(String::new()),
            Some(CertificateError::ExpiredContext { not_after, .. }) => {
                Self::Expired(format!(" on {}", date(not_after)))
            }
            Some(CertificateError::NotValidYet) => Self::NotYetValid(String::new()),
            Some(CertificateError::NotValidYetContext { not_before, .. }) => {
                Self::NotYetValid(format!(", but from {} on", date(not_before)))
            }
            Some(CertificateError::UnknownIssuer) => Self::UnknownIssuer,
            Some(why @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })) => {
                Self::OtherName(why)
            }
            Some(_) => Self::Other(error),
            None => Self::NoTls(error),
        }
    }
}

/// What rustls has to say of the certificate, wherever it is in the chain.
fn certificate_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CertificateError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref() {
            return Some(why);
        }
        // What an error of this type wraps is not among its sources.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = wrapped.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

fn date(at: UnixTime) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(at.as_secs())).to_string()
}

/// From when to when a certificate is valid; `None` where that cannot be read.
pub(super) fn validity(der: &[u8]) -> Option<Validity> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let ms = |seconds: i64| u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000);
    let validity = certificate.validity();
    Some(Validity { from_ms: ms(validity.not_before.timestamp()), until_ms: ms(validity.not_after.timestamp()) })
}
