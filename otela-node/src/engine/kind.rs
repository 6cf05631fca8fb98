//! Which engine a command line starts, and where it says it will listen.
//!
//! A guess from names, for defaults and for clear messages only: whether the engine serves, and on which port,
//! is found by looking (see `listening` and `ready`), never by believing this.

use std::{ffi::OsString, fmt, path::Path, str::FromStr};

/// Engines whose habits we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's `llama-server`.
    LlamaServer,
    /// Ollama.
    Ollama,
    /// TensorRT-LLM's `trtllm-serve`.
    TensorRtLlm,
    /// Triton's front end that speaks the OpenAI API.
    Triton,
    /// otela's simulated engine.
    Otela,
    /// Anything else.
    Generic,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Vllm,
        Self::Sglang,
        Self::LlamaServer,
        Self::Ollama,
        Self::TensorRtLlm,
        Self::Triton,
        Self::Otela,
        Self::Generic,
    ];

    /// As shown in records and named by users: `vllm`, `sglang`, `llama.cpp`, `ollama`, `tensorrt-llm`, `triton`, `otela`,
    /// `generic`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::LlamaServer => "llama.cpp",
            Self::Ollama => "ollama",
            Self::TensorRtLlm => "tensorrt-llm",
            Self::Triton => "triton",
            Self::Otela => "otela",
            Self::Generic => "generic",
        }
    }

    /// Where it listens unless told otherwise.
    #[must_use]
    pub fn default_port(self) -> Option<u16> {
        match self {
            Self::Vllm | Self::TensorRtLlm | Self::Otela => Some(8000),
            Self::Sglang => Some(30000),
            Self::LlamaServer => Some(8080),
            Self::Ollama => Some(11434),
            Self::Triton => Some(9000),
            Self::Generic => None,
        }
    }

    /// What its API can do beyond plain OpenAI, in the words used in model cards.
    #[must_use]
    pub fn features(self) -> &'static [&'static str] {
        match self {
            Self::Vllm | Self::Otela => &["continue_final_message"],
            _ => &[],
        }
    }

    /// Whether it works on many requests at a time, so that a small one is answered beside long ones. The others may let it
    /// wait until these are through.
    #[must_use]
    pub fn batches(self) -> bool {
        match self {
            Self::Vllm | Self::Sglang | Self::TensorRtLlm | Self::Triton | Self::Otela => true,
            Self::LlamaServer | Self::Ollama | Self::Generic => false,
        }
    }

    fn by_name(name: &str) -> Option<Self> {
        match name {
            "vllm" => Some(Self::Vllm),
            "sglang" => Some(Self::Sglang),
            "llama-server" | "llama-server.exe" => Some(Self::LlamaServer),
            "ollama" => Some(Self::Ollama),
            "trtllm-serve" => Some(Self::TensorRtLlm),
            "openai_frontend" => Some(Self::Triton),
            _ => None,
        }
    }

    /// `vllm.entrypoints.openai.api_server` is of vLLM.
    fn by_module(module: &str) -> Option<Self> {
        match module.split('.').next() {
            Some("vllm") => Some(Self::Vllm),
            Some("sglang") => Some(Self::Sglang),
            Some("tensorrt_llm") => Some(Self::TensorRtLlm),
            _ => None,
        }
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|engine| engine.name() == name);
        known.ok_or_else(|| format!("there are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// What a command line says of its engine.
#[derive(Clone, PartialEq, Eq)]
pub struct Kind {
    /// Whose command it is.
    pub engine: Engine,
    /// The address it was told to bind.
    pub host: Option<String>,
    /// The port it was told to bind; `Some(0)` leaves it to the kernel.
    pub port: Option<u16>,
    /// The key it was told to ask of its clients.
    pub api_key: Option<String>,
    /// The models that it will serve, as far as its arguments tell.
    pub models: Vec<String>,
    /// The quantisation and the number format that it was told to use; empty where it chooses by itself.
    pub quantization: String,
    /// See [`Kind::quantization`].
    pub dtype: String,
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, host, port, api_key, models, quantization, dtype } = self;
        let api_key = api_key.as_ref().map(|_| "...");
        f.debug_struct("Kind")
            .field("engine", engine)
            .field("host", host)
            .field("port", port)
            .field("api_key", &api_key)
            .field("models", models)
            .field("quantization", quantization)
            .field("dtype", dtype)
            .finish()
    }
}

impl Kind {
    /// Reads an engine's command line, whose it is if that is known. Never fails: what is not understood is generic.
    #[must_use]
    pub fn recognise(argv: &[OsString], known: Option<Engine>) -> Self {
        let words: Vec<&str> = argv.iter().map(|word| word.to_str().unwrap_or_default()).collect();
        let engine = known.or_else(|| engine(&words)).unwrap_or(Engine::Generic);
        let mut port = value(&words, "--port").and_then(|text| text.parse().ok());
        let mut host = value(&words, "--host").map(str::to_owned);
        if engine == Engine::Generic && port.is_none() {
            port = value(&words, "-p").and_then(|text| text.parse().ok());
        }
        if engine == Engine::Triton {
            port = value(&words, "--openai-port").and_then(|text| text.parse().ok());
        }
        if engine == Engine::Otela
            && let Some((ip, listen)) = value(&words, "--listen").and_then(|text| text.rsplit_once(':'))
        {
            host = Some(ip.trim_matches(['[', ']']).to_owned());
            port = listen.parse().ok().or(port);
        }
        let api_key = value(&words, "--api-key").map(str::to_owned);
        let told = |flag: &str| value(&words, flag).filter(|word| !word.starts_with('-') && *word != "auto");
        let quantization = told("--quantization").or(told("-q")).unwrap_or_default().to_owned();
        let dtype = told("--dtype").unwrap_or_default().to_owned();
        Self { engine, host, port, api_key, models: models(engine, &words), quantization, dtype }
    }

    /// The port to expect, from the arguments or the engine's default; `None` when only looking can tell.
    #[must_use]
    pub fn expected_port(&self) -> Option<u16> {
        match self.port {
            Some(0) => None,
            Some(port) => Some(port),
            None => self.engine.default_port(),
        }
    }
}

/// The last `flag VALUE` or `flag=VALUE`, as argument parsers have it.
fn value<'a>(words: &[&'a str], flag: &str) -> Option<&'a str> {
    let last = words
        .iter()
        .rposition(|word| word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))?;
    words[last].strip_prefix(flag)?.strip_prefix('=').or_else(|| words.get(last + 1).copied())
}

/// The names by which an engine will list its models: those it was given, or the model itself.
fn models(engine: Engine, words: &[&str]) -> Vec<String> {
    const SERVED: &str = "--served-model-name";
    let owned = |word: &&str| (*word).to_owned();
    let is_flag = |word: &&str| word.starts_with('-');
    let after = |name: &str| words.iter().skip_while(|word| **word != name).nth(1).filter(|word| !is_flag(word));
    if let Some(at) = words.iter().position(|word| *word == SERVED) {
        return words[at + 1..].iter().take_while(|word| !is_flag(word)).map(owned).collect();
    }
    let model = match engine {
        Engine::Vllm => value(words, "--model").or(after("serve").copied()),
        Engine::Sglang => value(words, "--model-path").or(value(words, "--model")),
        Engine::LlamaServer => value(words, "--alias"),
        Engine::Otela => after("engine").copied(),
        Engine::TensorRtLlm => after("serve").or(after("trtllm-serve")).copied(),
        Engine::Ollama | Engine::Triton | Engine::Generic => None,
    };
    value(words, SERVED).or(model).map(str::to_owned).into_iter().collect()
}

fn file_name(word: &str) -> &str {
    Path::new(word).file_name().and_then(|name| name.to_str()).unwrap_or(word)
}

fn is_python(name: &str) -> bool {
    name.strip_prefix("python").is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// Programs that run the program named further on.
fn is_launcher(name: &str) -> bool {
    const LAUNCHERS: [&str; 24] = [
        "uv",
        "uvx",
        "env",
        "srun",
        "mpirun",
        "nice",
        "numactl",
        "taskset",
        "nohup",
        "stdbuf",
        "time",
        "timeout",
        "apptainer",
        "singularity",
        "poetry",
        "pixi",
        "pipx",
        "conda",
        "mamba",
        "micromamba",
        "hatch",
        "rye",
        "nsys",
        "setsid",
    ];
    is_python(name) || LAUNCHERS.contains(&name)
}

fn engine(words: &[&str]) -> Option<Engine> {
    let (first, rest) = words.split_first()?;
    let name = file_name(first);
    if name == "otela" {
        return (rest.first() == Some(&"engine")).then_some(Engine::Otela);
    }
    if let Some(engine) = Engine::by_name(name) {
        return Some(engine);
    }
    if is_python(name) {
        return python(rest);
    }
    if !is_launcher(name) {
        return None;
    }
    // A launcher's own options differ too much to be read: the first word that names a program counts.
    let next = rest.iter().position(|word| {
        let name = file_name(word);
        name == "otela" || Engine::by_name(name).is_some() || is_launcher(name)
    })?;
    engine(&rest[next..])
}

/// Python's own arguments end at `-m MODULE`, `-c CODE` or the first file.
fn python(words: &[&str]) -> Option<Engine> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "-m" => return Engine::by_module(words.next()?),
            "-c" => return None,
            "-W" | "-X" => {
                words.next();
            }
            option if option.starts_with("-m") => return Engine::by_module(&option[2..]),
            option if option.starts_with('-') => {}
            file => {
                let by_folder =
                    || Path::new(file).components().rev().find_map(|part| Engine::by_name(part.as_os_str().to_str()?));
                return Engine::by_name(file_name(file)).or_else(by_folder);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(line: &str) -> Kind {
        Kind::recognise(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>(), None)
    }

    #[test]
    fn models_are_known_before_they_are_served() {
        for (command, models) in [
            ("vllm serve org/m --port 1", &["org/m"][..]),
            ("env A=1 /x/vllm serve /path --served-model-name a b --port 1", &["a", "b"]),
            ("vllm serve m --served-model-name=x", &["x"]),
            ("python -m vllm.entrypoints.openai.api_server --model m", &["m"]),
            ("python -m sglang.launch_server --model-path m", &["m"]),
            ("otela engine m --port 0", &["m"]),
            ("trtllm-serve org/m --port 1", &["org/m"]),
            ("trtllm-serve serve org/m --port 1", &["org/m"]),
            ("llama-server -m m.gguf --alias m", &["m"]),
            ("something else", &[]),
        ] {
            let argv: Vec<_> = command.split(' ').map(OsString::from).collect();
            assert_eq!(Kind::recognise(&argv, None).models, models, "{command}");
        }
    }

    #[test]
    fn engines_are_known_by_their_commands() {
        let cases = [
            ("vllm serve meta-llama/Llama-3.1-8B", Engine::Vllm),
            ("/x/bin/vllm serve m", Engine::Vllm),
            ("python -m vllm.entrypoints.openai.api_server --model m", Engine::Vllm),
            ("/usr/bin/python3.12 -u -X dev -m vllm.entrypoints.openai.api_server", Engine::Vllm),
            ("python3 /opt/vllm/entrypoints/openai/api_server.py", Engine::Vllm),
            ("python3 /venv/bin/vllm serve m", Engine::Vllm),
            ("uv run vllm serve m", Engine::Vllm),
            ("uv run --with vllm python -m sglang.launch_server", Engine::Vllm),
            ("srun --ntasks=1 numactl -N 0 vllm serve m", Engine::Vllm),
            ("env HF_HOME=/scratch python -m sglang.launch_server --model-path m", Engine::Sglang),
            ("python -msglang.launch_server", Engine::Sglang),
            ("llama-server -m m.gguf", Engine::LlamaServer),
            ("ollama serve", Engine::Ollama),
            ("mpirun -n 2 trtllm-serve m --tp_size 2", Engine::TensorRtLlm),
            ("python3 /opt/tritonserver/python/openai/openai_frontend/main.py --model-repository r", Engine::Triton),
            ("otela engine --model m", Engine::Otela),
            ("/x/otela start", Engine::Generic),
            ("my-server --backend vllm", Engine::Generic),
            ("python serve.py --backend vllm", Engine::Generic),
            ("srun python serve.py vllm", Engine::Generic),
            ("python3-config vllm", Engine::Generic),
            ("", Engine::Generic),
        ];
        for (line, engine) in cases {
            assert_eq!(kind(line).engine, engine, "{line}");
        }
    }

    #[test]
    fn ports_and_hosts_come_from_the_arguments() {
        let cases = [
            ("vllm serve m", None, Some(8000)),
            ("vllm serve m --port 8123", Some(8123), Some(8123)),
            ("vllm serve m --port=1 --port=2", Some(2), Some(2)),
            ("vllm serve m --port", None, Some(8000)),
            ("vllm serve m --port banana", None, Some(8000)),
            ("vllm serve m --port 70000", None, Some(8000)),
            ("vllm serve m --ports 5", None, Some(8000)),
            ("vllm serve m -p 5", None, Some(8000)),
            ("my-server -p 5", Some(5), Some(5)),
            ("my-server", None, None),
            ("sglang serve --port 0", Some(0), None),
            ("llama-server", None, Some(8080)),
            ("ollama serve", None, Some(11434)),
            ("otela engine --listen [::1]:7000", Some(7000), Some(7000)),
        ];
        for (line, port, expected) in cases {
            assert_eq!((kind(line).port, kind(line).expected_port()), (port, expected), "{line}");
        }
        assert_eq!(kind("vllm serve m --host=::1").host.as_deref(), Some("::1"));
        assert_eq!(kind("otela engine --listen [::1]:7000").host.as_deref(), Some("::1"));
    }

    #[test]
    fn whoever_knows_better_says_so() {
        let argv = ["sh", "-c", "exec", "--port", "7"].map(OsString::from);
        let kind = Kind::recognise(&argv, Some("vllm".parse().unwrap()));
        assert_eq!((kind.engine, kind.port), (Engine::Vllm, Some(7)));
        assert!("llama".parse::<Engine>().unwrap_err().contains("llama.cpp"));
    }

    #[test]
    fn a_key_is_read_and_not_shown() {
        let kind = kind("vllm serve m --api-key hunter2");
        assert_eq!(kind.api_key.as_deref(), Some("hunter2"));
        assert!(!format!("{kind:?}").contains("hunter2"));
    }
}
