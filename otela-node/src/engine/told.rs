//! The command line with which an engine is started: the provider's own, and where it is to listen if that is not in it.
//!
//! Eight nodes of one host with the same command line would all want the engine's usual port, and most engines listen on every
//! interface, for whoever comes by. So an engine whose flags we know and that was not told is told a free port and the
//! loopback. Any other command line is passed on as it is, but for the word `{port}`.

use super::kind::{Engine, Kind};
use std::{
    ffi::{OsStr, OsString},
    io,
    net::{Ipv4Addr, TcpListener},
};

/// What stands for a free port in a command line.
const PORT_WORD: &str = "{port}";
/// Ollama's address, which has no flag.
const OLLAMA_HOST: &str = "OLLAMA_HOST";

/// What is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// The words.
    pub argv: Vec<OsString>,
    /// Variables besides those that the node has itself.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether a port was chosen here: if somebody takes it first, another one will do.
    pub chose_port: bool,
}

/// A port that nobody had a moment ago.
///
/// # Errors
/// There is none.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Kind {
    /// The same, expected where its variables say that it listens.
    #[must_use]
    pub fn listening_at(mut self, told: &Told) -> Self {
        let at = told.environment.iter().find(|(name, _)| name == OLLAMA_HOST).and_then(|(_, at)| at.to_str());
        if let Some((host, port)) = at.and_then(|at| at.rsplit_once(':')) {
            self.host = Some(host.to_owned());
            self.port = port.parse().ok();
        }
        self
    }

    /// What is started for `argv`, the words that this kind was recognised by.
    ///
    /// # Errors
    /// A free port is needed and there is none.
    pub fn told(&self, argv: &[OsString]) -> io::Result<Told> {
        let mut told = Told { argv: argv.to_vec(), environment: Vec::new(), chose_port: false };
        let asks = |word: &OsString| word.to_str().is_some_and(|word| word.contains(PORT_WORD));
        if argv.iter().any(asks) {
            let port = free_port()?.to_string();
            let fill = |word: &OsString| match word.to_str() {
                Some(text) => text.replace(PORT_WORD, &port).into(),
                None => word.clone(),
            };
            told.argv = argv.iter().map(fill).collect();
            told.chose_port = true;
            return Ok(told);
        }
        match self.engine {
            Engine::Generic => {}
            Engine::Ollama => {
                if self.port.is_none() && self.host.is_none() {
                    let at = format!("{}:{}", Ipv4Addr::LOCALHOST, free_port()?);
                    told.environment.push((OLLAMA_HOST.into(), at.into()));
                    told.chose_port = true;
                }
            }
            Engine::Vllm
            | Engine::Sglang
            | Engine::LlamaServer
            | Engine::Otela
            | Engine::TensorRtLlm
            | Engine::Triton => {
                if self.host.is_none() {
                    told.argv.extend(["--host", "127.0.0.1"].map(OsString::from));
                }
                if self.port.is_none() {
                    let flag = if self.engine == Engine::Triton { "--openai-port" } else { "--port" };
                    told.argv.extend([OsStr::new(flag).to_owned(), free_port()?.to_string().into()]);
                    told.chose_port = true;
                }
            }
        }
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> (String, Told) {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let told = Kind::recognise(&argv, None).told(&argv).unwrap();
        let words: Vec<_> = told.argv.iter().map(|word| word.to_string_lossy()).collect();
        (words.join(" "), told)
    }

    #[test]
    fn an_engine_that_was_told_where_to_listen_is_started_as_it_was_written() {
        for line in [
            "vllm serve m --port 8000 --host 0.0.0.0",
            "sglang serve --port=1 --host=::1",
            "otela engine m --listen 127.0.0.1:7000",
            "python serve.py",
            "sh -c exec",
        ] {
            assert_eq!(told(line).0, line);
            assert!(!told(line).1.chose_port);
        }
    }

    #[test]
    fn one_that_was_not_listens_on_the_loopback_at_a_port_of_its_own() {
        let (line, first) = told("srun vllm serve m");
        assert!(line.starts_with("srun vllm serve m --host 127.0.0.1 --port "), "{line}");
        assert!(first.chose_port);
        let port: u16 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert_eq!(Kind::recognise(&first.argv, None).port, Some(port), "and it is known where to look");
        assert_eq!(told("vllm serve m --port 1").0, "vllm serve m --port 1 --host 127.0.0.1");
        assert!(told("python /opt/tritonserver/python/openai/openai_frontend/main.py").0.contains("--openai-port "));
        let ollama = told("ollama serve").1;
        assert_eq!(ollama.argv.len(), 2);
        assert!(ollama.environment[0].1.to_str().unwrap().starts_with("127.0.0.1:"));
    }

    #[test]
    fn other_commands_have_a_word_for_it() {
        let (line, told) = told("my-server --at=[::1]:{port} -p {port}");
        assert!(told.chose_port && !line.contains('{'), "{line}");
        let port = line.rsplit(' ').next().unwrap();
        assert_eq!(line, format!("my-server --at=[::1]:{port} -p {port}"));
    }
}
