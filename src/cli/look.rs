//! Flags of the commands that look at a mesh: `otela nodes`, `otela models`, `otela status`.

use http::{Uri, uri::Scheme};
use std::{fmt, str::FromStr};

/// Where an otela answers over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Host and port as in a URL.
    pub(crate) authority: String,
    /// Host without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// What comes before `/v1` in paths; empty, unless a proxy wants it.
    pub(crate) prefix: String,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let example = "an example: http://127.0.0.1:8080";
        let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = url.parse().map_err(|error| format!("not a URL ({error}); {example}"))?;
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(format!("only http:// can be asked; {example}"));
        }
        let authority = uri.authority().filter(|a| !a.host().is_empty() && !a.as_str().contains('@'));
        let authority = authority.ok_or_else(|| format!("no host, or more than a host; {example}"))?;
        if uri.query().is_some() {
            return Err(format!("a URL without a query is needed; {example}"));
        }
        let port = match (authority.port_u16(), authority.as_str().strip_prefix(authority.host())) {
            (Some(port), _) => port,
            (None, Some("")) => 80,
            (None, _) => return Err(format!("not a port number; {example}")),
        };
        // The base URL of an OpenAI client will do.
        let path = uri.path().trim_end_matches('/');
        Ok(Self {
            authority: authority.to_string(),
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port,
            prefix: path.find("/v1").map_or(path, |at| &path[..at]).to_owned(),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
    }
}

/// Whom to ask, and how to print the answer.
#[derive(Debug, clap::Args)]
pub(crate) struct LookArgs {
    /// The HTTP address of any otela: an ingress, a node or a relay. The same as --url, and before it.
    #[arg(value_name = "URL")]
    asked: Option<Target>,
    /// The HTTP address of any otela: an ingress, a node or a relay.
    #[arg(long, env = "OTELA_URL", value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: Target,
    /// Print JSON as the otela gave it, all pages together.
    #[arg(long)]
    pub(crate) json: bool,
}

impl LookArgs {
    /// Whom to ask.
    pub(crate) fn target(&self) -> &Target {
        self.asked.as_ref().unwrap_or(&self.url)
    }
}

/// What both nodes and models can be chosen by. Values of one flag are alternatives, separated by commas or in
/// several flags; different flags must all hold.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Filters (values of one are alternatives, different ones must all hold)")]
pub(crate) struct FilterArgs {
    /// Model ids. Case counts.
    #[arg(long, value_name = "ID")]
    model: Vec<String>,
    /// Labels of nodes, by name or with their value.
    #[arg(long, value_name = "KEY[=VALUE]")]
    label: Vec<String>,
    /// Kinds of accelerators, for example A100-80GB. Case does not count.
    #[arg(long, value_name = "KIND")]
    gpu: Vec<String>,
    /// Providers: an id finds nodes that have proven it, a name those that have it in their label `provider`, which
    /// proves nothing.
    #[arg(long, value_name = "ID|NAME")]
    provider: Vec<String>,
}

/// Parameters of a question: name and value.
pub(crate) type Parameters = Vec<(&'static str, String)>;

impl FilterArgs {
    fn parameters(&self) -> Parameters {
        let all = [("model", &self.model), ("label", &self.label), ("gpu", &self.gpu), ("provider", &self.provider)];
        all.into_iter().flat_map(|(name, values)| named(name, values)).collect()
    }
}

fn named(name: &'static str, values: &[String]) -> Parameters {
    values.iter().map(|value| (name, value.clone())).collect()
}

/// Flags of `otela nodes`.
#[derive(Debug, clap::Args)]
pub(crate) struct NodesArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// What nodes say: join, serving, down, left; or what is believed: alive, unreachable, suspect, evicted.
    #[arg(
        long,
        value_name = "STATE",
        help_heading = "Filters (values of one are alternatives, different ones must all hold)"
    )]
    state: Vec<String>,
    /// What is believed of them: alive, unreachable, suspect, evicted.
    #[arg(
        long,
        value_name = "BELIEF",
        help_heading = "Filters (values of one are alternatives, different ones must all hold)"
    )]
    belief: Vec<String>,
    /// Those too that have left or were evicted, as long as they are remembered.
    #[arg(long, conflicts_with = "state")]
    all: bool,
    /// Order: id, lifecycle, hostname, gpus, started_at or issued_at; with - before it the reverse.
    #[arg(long, value_name = "KEY", default_value = "id", allow_hyphen_values = true)]
    sort: String,
}

impl NodesArgs {
    /// The question's parameters.
    pub(crate) fn parameters(&self) -> Parameters {
        let mut parameters = self.filter.parameters();
        parameters.extend(named("state", &self.state));
        parameters.extend(named("belief", &self.belief));
        if self.all {
            parameters.push(("state", "alive,unreachable,suspect,evicted,left".to_owned()));
        }
        parameters.push(("sort", self.sort.clone()));
        parameters
    }
}

/// Flags of `otela models`.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelsArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// ready: with a replica that is ready; unready: without one.
    #[arg(
        long,
        value_name = "STATE",
        help_heading = "Filters (values of one are alternatives, different ones must all hold)"
    )]
    state: Vec<String>,
    /// Order: id, ready or unready; with - before it the reverse.
    #[arg(long, value_name = "KEY", default_value = "id", allow_hyphen_values = true)]
    sort: String,
}

impl ModelsArgs {
    /// The question's parameters.
    pub(crate) fn parameters(&self) -> Parameters {
        let mut parameters = self.filter.parameters();
        parameters.extend(named("state", &self.state));
        parameters.push(("sort", self.sort.clone()));
        parameters
    }
}

/// Flags of `otela status`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) look: LookArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_otelas() {
        for (text, authority, host, port, prefix) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", "127.0.0.1", 8080, ""),
            ("127.0.0.1:8080", "127.0.0.1:8080", "127.0.0.1", 8080, ""),
            ("http://gpu.example/", "gpu.example", "gpu.example", 80, ""),
            ("http://[::1]:9/v1/", "[::1]:9", "::1", 9, ""),
            ("http://[::1]", "[::1]", "::1", 80, ""),
            ("http://proxy.example/otela/v1", "proxy.example", "proxy.example", 80, "/otela"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!((target.authority.as_str(), target.host.as_str()), (authority, host), "{text}");
            assert_eq!((target.port, target.prefix.as_str()), (port, prefix), "{text}");
        }
        let bad = ["", "https://a", "ftp://a", "http://", "http://a:99999", "http://u:p@a", "http://a?x=1", "a b"];
        for bad in bad {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
