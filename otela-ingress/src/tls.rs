//! TLS towards clients: one certificate, shown anew when its files change.

use arc_swap::ArcSwap;
use otela_node::tasks::Tasks;
use rustls::{
    ServerConfig,
    crypto::ring,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject},
};
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

/// HTTP/2 is preferred where the client speaks it.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Where certificate and key are, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Renewed ones are taken up within this time.
    pub looked_at_every: Duration,
}

impl TlsFiles {
    /// Whether they could be shown now.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn check(&self) -> Result<(), TlsError> {
        load(self).map(drop)
    }
}

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not there, cannot be read, or holds something else.
    #[error("cannot use {}: it should hold {what} as PEM", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What should be in it.
        what: &'static str,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// They do not belong together, or are of a kind that is not known.
    #[error("cannot show the certificate of {} with the key of {}: do they belong together?", certificate.display(), key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong with them.
        source: rustls::Error,
    },
}

/// The certificate that is shown now.
#[derive(Debug)]
struct Shown(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// Accepts TLS connections on `tasks` for as long as they run, and follows changes of `files`.
///
/// # Errors
/// [`TlsError`] if the files cannot be used now. If they cannot later, the certificate stays what it was.
pub(crate) fn acceptor(files: TlsFiles, tasks: &Tasks) -> Result<TlsAcceptor, TlsError> {
    let changed = changed(&files);
    let shown = Arc::new(Shown(ArcSwap::from_pointee(load(&files)?)));
    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|source| pair(&files, source))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(&shown) as Arc<dyn ResolvesServerCert>);
    config.alpn_protocols = PROTOCOLS.iter().map(|name| name.to_vec()).collect();
    let stopping = tasks.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = follow(&files, &shown, changed) => {}
            () = stopping.draining() => {}
        }
    });
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn follow(files: &TlsFiles, shown: &Shown, mut known: [Option<SystemTime>; 2]) {
    loop {
        sleep(files.looked_at_every).await;
        let now = changed(files);
        if now == known {
            continue;
        }
        known = now;
        match load(files) {
            Ok(loaded) => {
                shown.0.store(Arc::new(loaded));
                tracing::info!("the certificate has changed and is shown from now on");
            }
            // Half of a renewal, most likely: it is looked at again when the other half is there.
            Err(error) => tracing::warn!(error = otela_node::telemetry::chain(&error), "the old certificate stays"),
        }
    }
}

fn changed(files: &TlsFiles) -> [Option<SystemTime>; 2] {
    [&files.certificate, &files.key].map(|file| std::fs::metadata(file).and_then(|meta| meta.modified()).ok())
}

fn load(files: &TlsFiles) -> Result<CertifiedKey, TlsError> {
    let wrong = |file: &PathBuf, what, source| TlsError::File { file: file.clone(), what, source };
    let certificates = |source| wrong(&files.certificate, "certificates", source);
    let chain: Vec<_> = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<_, _>>)
        .map_err(certificates)?;
    if chain.is_empty() {
        return Err(certificates(pem::Error::NoItemsFound));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|source| wrong(&files.key, "a private key", source))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|source| pair(files, source))
}

fn pair(files: &TlsFiles, source: rustls::Error) -> TlsError {
    TlsError::Pair { certificate: files.certificate.clone(), key: files.key.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn write(dir: &Path, name: &str) -> TlsFiles {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let files = TlsFiles {
            certificate: dir.join("cert.pem"),
            key: dir.join("key.pem"),
            looked_at_every: Duration::from_secs(30),
        };
        std::fs::write(&files.certificate, made.cert.pem()).unwrap();
        std::fs::write(&files.key, made.key_pair.serialize_pem()).unwrap();
        files
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_certificate_is_shown_without_being_told() {
        let dir = tempfile::tempdir().unwrap();
        let files = write(dir.path(), "old.example");
        let shown = Arc::new(Shown(ArcSwap::from_pointee(load(&files).unwrap())));
        let old = shown.0.load_full().cert[0].clone();
        let known = changed(&files);
        let following = follow(&files, &shown, known);
        tokio::pin!(following);
        std::fs::write(&files.certificate, "half").unwrap();
        let renewed = async {
            sleep(files.looked_at_every * 2).await;
            assert_eq!(shown.0.load().cert[0], old, "half of a renewal changes nothing");
            write(dir.path(), "new.example");
            std::fs::File::open(&files.key).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
            sleep(files.looked_at_every * 2).await;
            assert_ne!(shown.0.load().cert[0], old);
        };
        tokio::select! {
            () = following.as_mut() => unreachable!("it goes on for ever"),
            () = renewed => {}
        }
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let files = write(dir.path(), "a.example");
        let missing = TlsFiles { certificate: dir.path().join("none.pem"), ..files.clone() };
        assert!(load(&missing).unwrap_err().to_string().contains("none.pem"));
        let swapped = TlsFiles { certificate: files.key.clone(), ..files.clone() };
        assert!(load(&swapped).unwrap_err().to_string().contains("certificates as PEM"));
        let other = tempfile::tempdir().unwrap();
        let others = write(other.path(), "b.example");
        let mixed = TlsFiles { key: others.key, ..files };
        assert!(load(&mixed).unwrap_err().to_string().contains("belong together"));
    }
}
