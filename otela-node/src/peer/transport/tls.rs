//! Certificates of connections that look like the web. Who is at the other end is proven inside them, by Noise.

use super::certificate;
use crate::peer::{gossip::unix_ms, small::is_file};
use libp2p_websocket::tls::{Builder, Certificate, Config, PrivateKey};
use otela_proto::admission::Validity;
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject},
};
use std::path::{Path, PathBuf};

/// Which certificates are accepted, and which one is shown.
#[derive(Debug, Clone)]
pub struct Tls {
    config: Config,
    shows_one: bool,
    validity: Option<Validity>,
}

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file is not there, cannot be read, or has no certificate in it.
    #[error("cannot use {} of --{flag}: it should hold certificates as PEM (-----BEGIN CERTIFICATE-----)", file.display())]
    Certificate {
        /// The file.
        file: PathBuf,
        /// What named it.
        flag: &'static str,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// The file is not there, cannot be read, or has no key in it.
    #[error("cannot use {} of --tls-key: it should hold a private key as PEM (-----BEGIN PRIVATE KEY-----)", file.display())]
    Key {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// The key is of no known kind.
    #[error("what is in {} of --tls-key is no private key of a known kind, such as PKCS#8", file.display())]
    KeyKind {
        /// The file.
        file: PathBuf,
    },
    /// A certificate that nothing can be checked with.
    #[error("cannot trust what is in {} of --tls-ca", file.display())]
    Ca {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: libp2p_websocket::tls::Error,
    },
    /// Key and certificate do not belong together, or are of a kind that is not known.
    #[error("cannot show the certificate of {} with the key of {}: do they belong together?", certificate.display(), key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong with them.
        source: libp2p_websocket::tls::Error,
    },
}

impl Default for Tls {
    /// Accepts what the web's usual authorities have signed, and shows none.
    fn default() -> Self {
        Self { config: Config::client(), shows_one: false, validity: None }
    }
}

impl Tls {
    /// Accepts what this system trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR` are obeyed), the web's usual authorities, and
    /// what the files of `authorities` have signed. Shows the certificates of the first file of `own`, with the key of
    /// the second. All files are PEM.
    ///
    /// # Errors
    /// [`TlsError`]. What the system trusts and cannot be used is only logged.
    pub fn load(own: Option<(&Path, &Path)>, authorities: &[PathBuf]) -> Result<Self, TlsError> {
        let mut builder = Config::builder();
        trust_system(&mut builder);
        for file in authorities {
            for der in ders(file, "tls-ca")? {
                let trusted = builder.add_trust(&Certificate::new(der.to_vec()));
                trusted.map_err(|source| TlsError::Ca { file: file.clone(), source })?;
            }
        }
        let mut validity = None;
        if let Some((certificate, key)) = own {
            let chain = ders(certificate, "tls-cert")?;
            validity = chain.first().and_then(|own| certificate::validity(own));
            if validity.is_some_and(|validity| validity.has_ended(unix_ms())) {
                let file = certificate.display();
                tracing::warn!(%file, "the certificate of --tls-cert has expired: nobody will accept it");
            }
            let chain: Vec<_> = chain.iter().map(|der| Certificate::new(der.to_vec())).collect();
            let shown = builder.server(private_key(key)?, chain);
            shown.map_err(|source| TlsError::Pair { certificate: certificate.into(), key: key.into(), source })?;
        }
        Ok(Self { config: builder.finish(), shows_one: own.is_some(), validity })
    }

    /// Whether it can be listened with.
    #[must_use]
    pub fn shows_one(&self) -> bool {
        self.shows_one
    }

    /// From when to when the certificate that is shown is valid, as far as that can be read.
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        self.validity
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }
}

/// A system may have trusted for decades what nobody can read any more.
fn trust_system(builder: &mut Builder) {
    let system = rustls_native_certs::load_native_certs();
    for error in system.errors {
        tracing::warn!(error = crate::telemetry::chain(&error), "a certificate of this system cannot be used");
    }
    let certificates = system.certs.iter().map(|certificate| Certificate::new(certificate.to_vec()));
    let unusable = certificates.filter(|certificate| builder.add_trust(certificate).is_err()).count();
    if unusable > 0 {
        tracing::debug!(unusable, "some certificates of this system cannot be used");
    }
}

/// The certificates in a file.
fn ders(file: &Path, flag: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |source| TlsError::Certificate { file: file.into(), flag, source };
    is_file(file).map_err(|error| wrong(pem::Error::Io(error)))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).map_err(wrong)?.collect();
    match found.map_err(wrong)? {
        none if none.is_empty() => Err(wrong(pem::Error::NoItemsFound)),
        found => Ok(found),
    }
}

fn private_key(file: &Path) -> Result<PrivateKey, TlsError> {
    let wrong = |error| TlsError::Key { file: file.into(), source: pem::Error::Io(error) };
    is_file(file).map_err(wrong)?;
    let key = PrivateKeyDer::from_pem_file(file).map_err(|source| TlsError::Key { file: file.into(), source })?;
    let der = key.secret_der().to_vec();
    // What is made of it panics otherwise.
    PrivateKeyDer::try_from(&der[..]).map_err(|_| TlsError::KeyKind { file: file.into() })?;
    Ok(PrivateKey::new(der))
}
