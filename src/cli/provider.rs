//! Flags by which a node proves for whom it is run.

use otela_node::peer::{
    PeerConfig,
    provider::{ProviderError, ProviderSettings, Subject},
};
use otela_proto::{own::SITE_LABEL, provider::ProviderRules};
use std::{collections::BTreeMap, path::PathBuf};

/// Who provides this node.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Provider")]
pub(crate) struct ProviderArgs {
    /// The provider's key, made with `otela key`: the node certifies by itself for whom it is run, and goes on doing so.
    /// The key is read once and never leaves this process.
    #[arg(long, env = "OTELA_START_PROVIDER_KEY", value_name = "FILE", conflicts_with = "provider_certificate")]
    provider_key: Option<PathBuf>,
    /// The provider's certificate for this node, signed elsewhere with `otela sign --provider-of`. Read again when it
    /// changes.
    #[arg(long, env = "OTELA_START_PROVIDER_CERTIFICATE", value_name = "FILE", requires = "key")]
    provider_certificate: Option<PathBuf>,
}

impl ProviderArgs {
    /// What a node with this configuration and these labels shows of its provider.
    pub(crate) fn settings(
        &self,
        config: &PeerConfig,
        labels: &BTreeMap<String, String>,
    ) -> Result<Option<ProviderSettings>, ProviderError> {
        // As its entry will have them.
        let mut all: BTreeMap<_, _> = config.site.iter().map(|site| (SITE_LABEL.to_owned(), site.clone())).collect();
        all.extend(labels.clone());
        let subject = Subject { peer: config.identity.keypair().public().to_peer_id(), labels: all };
        let rules = ProviderRules::from(&config.admission.rules);
        match (&self.provider_key, &self.provider_certificate) {
            (Some(key), _) => ProviderSettings::with_key(key, subject, &rules).map(Some),
            (None, Some(path)) => ProviderSettings::with_certificate(path, subject, &rules).map(Some),
            (None, None) => Ok(None),
        }
    }
}
