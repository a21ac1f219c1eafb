//! The command line: every flag, its `TOKO_*` variable, its range and its help.
//!
//! What was typed, checked on its own; what it means together is for the commands.

pub(crate) mod bench;
pub(crate) mod policy;

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use clap::{
    Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
    builder::BoolishValueParser, parser::ValueSource,
};

use toko_admission::units::Bytes;
use toko_engine::KvType;
use toko_kernels::isa::Tier;

use bench::BenchArgs;
use policy::PolicyArgs;

use crate::{
    access, config,
    failure::Failure,
    number,
    size::{self, KeepAlive},
};

/// Run language models on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "toko",
    bin_name = "toko",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 no room in memory, \
                  5 no server, 130 interrupted."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What `toko` is asked to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer a prompt, or chat on a terminal
    #[command(visible_alias = "chat", long_about = RUN_ABOUT, after_long_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Serve models over HTTP with the OpenAI API
    #[command(long_about = SERVE_ABOUT)]
    Serve(ServeArgs),
    /// List what holds memory on this machine, and a running server's models
    Ps(PsArgs),
    /// Say how much memory models may take, and what a load would be told
    #[command(long_about = POLICY_ABOUT)]
    Policy(PolicyArgs),
    /// Check that this machine is in order for running models
    #[command(long_about = DOCTOR_ABOUT)]
    Doctor(DoctorArgs),
    /// Show what is in a model file
    #[command(long_about = SHOW_ABOUT)]
    Show(ShowArgs),
    /// Measure how fast a model computes on this machine
    #[command(long_about = bench::ABOUT)]
    Bench(BenchArgs),
    /// Turn text into tokens
    #[command(long_about = TOKENIZE_ABOUT)]
    Tokenize(TokenizeArgs),
}

const RUN_ABOUT: &str = "\
Answer a prompt, or chat on a terminal.

Without a model the small built-in one answers. A single argument is taken for the model when it \
ends in .gguf, names an existing file, or is the word \"embedded\"; anything else is the prompt. \
Of two arguments the first is always the model. After --model the argument is always the prompt.

Text that is piped in is added below the prompt. Only the answer goes to standard output. Without \
a prompt, on a terminal, a chat starts.";

const RUN_EXAMPLES: &str = "\
Examples:
  toko run \"Tell me a story about a fox\"
  toko run model.gguf \"Why is the sky blue?\"
  toko run model.gguf
  cat notes.txt | toko run model.gguf \"Summarise:\"";

const SERVE_ABOUT: &str = "\
Serve models over HTTP with the OpenAI API.

Without a path the small built-in model is served. Of several models the first is loaded at once and \
the others when they are asked for. Ctrl-C or SIGTERM lets the running answers \
finish within --drain-timeout; a second one ends them.";

const SHOW_ABOUT: &str = "\
Show what is in a model file: architecture, geometry, tensor types, tokenizer, chat template, \
memory per token of context.

Works on every readable GGUF file, also on one that cannot be run here.";

const POLICY_ABOUT: &str = "\
Say how much memory models may take, and what a load would be told.

The policy is everyday (40 % of the memory), local-focused (80 %) or a size such as custom:12.5GB. It holds \
for all processes of this user together and from the next load on; loaded models stay.";

const DOCTOR_ABOUT: &str = "\
Check that this machine is in order for running models: how much memory there is and what limits it, the policy's \
file, the other processes, the folders that are used, the last crash.

Exit code 0 means that all is well, 1 that something was found.";

const TOKENIZE_ABOUT: &str = "\
Turn text into tokens.

A single argument is the model (the text is then read from standard input) when it ends in .gguf, \
names an existing file, or is the word \"embedded\"; anything else is text for the built-in model. \
No token is added and special tokens written in the text are plain text, unless asked for.";

/// Arguments of `toko run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The model (see above), then the prompt
    #[arg(value_name = "MODEL|PROMPT")]
    pub(crate) first: Option<OsString>,
    /// The prompt
    #[arg(value_name = "PROMPT")]
    pub(crate) second: Option<OsString>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) generation: GenerationArgs,
    /// Continue the text as it stands, without a chat template; special tokens written in it count
    #[arg(long, env = "TOKO_RAW", conflicts_with = "system", value_parser = BoolishValueParser::new())]
    pub(crate) raw: bool,
    /// Print timings on standard error
    #[arg(long, short, env = "TOKO_VERBOSE", value_parser = BoolishValueParser::new())]
    pub(crate) verbose: bool,
}

/// The model by name of a flag.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Model file, or "embedded" for the built-in one
    #[arg(long = "model", short = 'm', env = "TOKO_MODEL", value_name = "PATH")]
    pub(crate) path: Option<OsString>,
    /// Whether the flag was typed; an environment variable gives way to an argument.
    #[arg(skip)]
    pub(crate) is_typed: bool,
}

/// How a model is loaded.
#[derive(Debug, Args)]
#[command(next_help_heading = "Loading")]
pub(crate) struct LoadArgs {
    /// Tokens of context [default: the model's own, at most 4096]
    #[arg(long, env = "TOKO_CTX", value_name = "TOKENS", value_parser = number::whole(1..=usize::MAX))]
    pub(crate) ctx: Option<usize>,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    /// Load the model although it has no room; it is charged all the same
    #[arg(long)]
    pub(crate) force: bool,
}

/// How a model is computed.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ComputeArgs {
    /// Compute threads [default: the cores that this process may use]
    #[arg(long, short, env = "TOKO_THREADS", value_name = "N", value_parser = number::whole(config::THREADS))]
    pub(crate) threads: Option<usize>,
    #[command(flatten)]
    pub(crate) kernel: KernelArgs,
    /// Element type of the KV cache
    #[arg(long, env = "TOKO_KV_TYPE", value_name = "TYPE", default_value = config::KV_TYPE)]
    pub(crate) kv_type: KvTypeName,
}

/// Which instruction set computes.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct KernelArgs {
    /// Instruction set of the kernels, such as reference or avx2; answers are the same with each [default: the
    /// fastest that this machine has]
    #[arg(long = "kernel", env = "TOKO_KERNEL", value_name = "NAME", value_parser = tier)]
    pub(crate) tier: Option<Tier>,
}

/// How much memory there is for models.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct MemoryArgs {
    /// The most that models may take, all processes together, such as 512MB or 12.5GB [default: what the policy says]
    #[arg(long = "memory-limit", env = "TOKO_MEMORY_LIMIT", value_name = "SIZE", value_parser = size::bytes)]
    pub(crate) limit: Option<Bytes>,
}

/// The names of the KV cache's element types.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum KvTypeName {
    /// 16-bit floats
    F16,
    /// 32-bit floats
    F32,
    /// 8-bit integers, 32 to a scale: about half of f16's memory
    #[value(name = "q8_0")]
    Q8_0,
}

impl KvTypeName {
    /// Returns the name as it is typed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Q8_0 => "q8_0",
        }
    }
}

impl From<KvTypeName> for KvType {
    fn from(name: KvTypeName) -> Self {
        match name {
            KvTypeName::F16 => Self::F16,
            KvTypeName::F32 => Self::F32,
            KvTypeName::Q8_0 => Self::Q8_0,
        }
    }
}

/// How an answer is generated. `/set` in the chat takes the same names.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Generation")]
pub(crate) struct GenerationArgs {
    /// Randomness from 0 (always the most likely token) to 2 [default: 0.5; built-in model: 0.3]
    #[arg(long, env = "TOKO_TEMPERATURE", value_name = "T")]
    #[arg(value_parser = number::between(config::TEMPERATURES), allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Choose among the K most likely tokens; 0 is all
    #[arg(long, env = "TOKO_TOP_K", value_name = "K", default_value_t = config::TOP_K)]
    #[arg(value_parser = number::whole(0..=usize::MAX), allow_negative_numbers = true)]
    pub(crate) top_k: usize,
    /// Choose among the most likely tokens that together reach this probability; 1 is all
    #[arg(long, env = "TOKO_TOP_P", value_name = "P", default_value_t = config::TOP_P)]
    #[arg(value_parser = number::between(config::PROBABILITIES), allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Drop tokens less likely than this share of the most likely one; 0 keeps all
    #[arg(long, env = "TOKO_MIN_P", value_name = "P", default_value_t = config::MIN_P)]
    #[arg(value_parser = number::between(config::PROBABILITIES), allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Make recent tokens less likely by this factor; 1 is off
    #[arg(long, env = "TOKO_REPEAT_PENALTY", value_name = "X", default_value_t = config::REPEAT_PENALTY)]
    #[arg(value_parser = number::between(config::REPEAT_PENALTIES), allow_negative_numbers = true)]
    pub(crate) repeat_penalty: f32,
    /// Make a recent token less likely for each time that it occurred, -2 to 2; 0 is off
    #[arg(long, env = "TOKO_FREQUENCY_PENALTY", value_name = "X", default_value_t = config::FREQUENCY_PENALTY)]
    #[arg(value_parser = number::between(config::COUNT_PENALTIES), allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Make every recent token less likely, -2 to 2; 0 is off
    #[arg(long, env = "TOKO_PRESENCE_PENALTY", value_name = "X", default_value_t = config::PRESENCE_PENALTY)]
    #[arg(value_parser = number::between(config::COUNT_PENALTIES), allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// The same seed gives the same answer [default: another one each time]
    #[arg(long, env = "TOKO_SEED", value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// End the answer after N tokens [default: when the model is done or the context is full]
    #[arg(long, env = "TOKO_MAX_TOKENS", value_name = "N")]
    #[arg(value_parser = number::whole(1..=usize::MAX), allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<usize>,
    /// End the answer before this text; may be given several times
    #[arg(long, env = "TOKO_STOP", value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,
    /// Instructions that stand before the conversation
    #[arg(long, env = "TOKO_SYSTEM", value_name = "TEXT")]
    pub(crate) system: Option<String>,
}

/// Arguments of `toko serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Model files, or "embedded" for the built-in one
    #[arg(value_name = "MODEL")]
    pub(crate) positional: Vec<OsString>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Address to listen on: a host, host:port or http://host:port
    #[arg(long, env = "TOKO_HOST", default_value = config::HOST)]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one [default: the one in --host, or 11435]
    #[arg(long, short, env = "TOKO_PORT")]
    pub(crate) port: Option<u16>,
    /// Further name by which clients may ask for the first model, or * for every name that no model has; may be
    /// given several times
    #[arg(long, env = "TOKO_ALIAS", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) alias: Vec<String>,
    /// How long a model stays when nobody uses it, such as 90s, 5m or 2h; -1 is until its memory is needed, 0 not at
    /// all [default: -1]
    #[arg(long, env = "TOKO_KEEP_ALIVE", value_name = "DURATION", value_parser = size::keep_alive, allow_negative_numbers = true)]
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Keep the models although their memory is needed for others
    #[arg(long, env = "TOKO_PIN", value_parser = BoolishValueParser::new())]
    pub(crate) pin: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// How much a server takes on, and for how long.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Replicas over one copy of the weights: answers computed at once; more wait their turn [default: the
    /// cores that this process may use, at most 4]
    #[arg(long, visible_alias = "parallel", env = "TOKO_REPLICAS", value_name = "N")]
    #[arg(value_parser = number::whole(config::REPLICA_COUNTS))]
    pub(crate) replicas: Option<usize>,
    /// Tokens of earlier conversations kept, so that what begins the same is not computed again; 0
    /// keeps none [default: as many as one context holds]
    #[arg(long, env = "TOKO_PREFIX_CACHE_TOKENS", value_name = "N", value_parser = number::whole(0..=usize::MAX))]
    pub(crate) prefix_cache_tokens: Option<usize>,
    /// Requests that may wait their turn; further ones are told at once when to come back
    #[arg(long, env = "TOKO_QUEUE_LIMIT", value_name = "N", default_value_t = config::QUEUE_LIMIT)]
    #[arg(value_parser = number::whole(config::QUEUE_LIMITS))]
    pub(crate) queue_limit: usize,
    /// How long a request may wait its turn; 0 is not at all
    #[arg(long, env = "TOKO_QUEUE_TIMEOUT", value_name = "SECONDS", default_value_t = config::QUEUE_TIMEOUT_SECONDS)]
    pub(crate) queue_timeout: u32,
    /// How long running answers may go on after Ctrl-C or SIGTERM
    #[arg(long, env = "TOKO_DRAIN_TIMEOUT", value_name = "SECONDS", default_value_t = config::DRAIN_SECONDS)]
    pub(crate) drain_timeout: u32,
}

/// Who may use a server. Not for `Debug`: it holds secrets.
#[derive(Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// Key of which clients have to show one; may be given several times. Other users of this machine can see
    /// arguments: a file or the variable is safer
    #[arg(long, env = "TOKO_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub(crate) api_key: Vec<String>,
    /// File with one key a line; empty lines and lines that begin with # are skipped
    #[arg(long, env = "TOKO_API_KEY_FILE", value_name = "PATH")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Origins of web pages that may read answers beside those of this machine, separated by commas;
    /// * is all
    #[arg(long, env = "TOKO_CORS_ORIGINS", value_name = "ORIGINS", value_delimiter = ',', value_parser = access::origin)]
    pub(crate) cors_origins: Vec<String>,
    /// Listen where other machines can connect, although there are no API keys
    #[arg(long, env = "TOKO_INSECURE", value_parser = BoolishValueParser::new())]
    pub(crate) insecure: bool,
}

impl std::fmt::Debug for AccessArgs {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("AccessArgs(…)")
    }
}

/// Arguments of `toko ps`.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// The server's address: a host, host:port or http://host:port [default: 127.0.0.1, if a server runs there]
    #[arg(long, visible_alias = "url", env = "TOKO_HOST")]
    pub(crate) host: Option<String>,
    /// The server's port [default: the one in --host, or 11435]
    #[arg(long, short, env = "TOKO_PORT")]
    pub(crate) port: Option<u16>,
    /// Key to show, if the server asks for one; other users of this machine can see arguments
    #[arg(long, env = "TOKO_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    /// Print one JSON document
    #[arg(long, env = "TOKO_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

/// Arguments of `toko doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) kernel: KernelArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    /// Print one JSON document
    #[arg(long, env = "TOKO_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

/// Arguments of `toko show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Model file, or "embedded" for the built-in one
    #[arg(value_name = "MODEL", env = "TOKO_MODEL")]
    pub(crate) model: PathBuf,
    /// Print one JSON document
    #[arg(long, env = "TOKO_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    /// Print the whole chat template and nothing else
    #[arg(long, conflicts_with = "json")]
    pub(crate) template: bool,
}

/// Arguments of `toko tokenize`.
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// The model (see above), then the text
    #[arg(value_name = "MODEL|TEXT")]
    pub(crate) first: Option<OsString>,
    /// The text; - reads standard input
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) second: Option<OsString>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Print {"tokens":[…]}
    #[arg(long, env = "TOKO_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    /// Add the tokens that the model wants at the start and end, as in a prompt
    #[arg(long, env = "TOKO_BOS", value_parser = BoolishValueParser::new())]
    pub(crate) bos: bool,
    /// Let special tokens written in the text count as such
    #[arg(long, env = "TOKO_SPECIAL", value_parser = BoolishValueParser::new())]
    pub(crate) special: bool,
}

/// Tells whether a command knows a flag by this name, dashes included.
pub(crate) fn has_flag(command: &OsStr, flag: &str) -> bool {
    let cli = Cli::command();
    let Some(command) = cli.find_subcommand(command) else { return false };
    let name = flag.trim_start_matches('-');
    command.get_arguments().any(|argument| argument.get_long() == Some(name))
}

/// Reads the name of an instruction set that this machine has.
fn tier(name: &str) -> Result<Tier, String> {
    Tier::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Tier::available().into_iter().map(Tier::name).collect();
        format!("this machine has {}", names.join(", "))
    })
}

/// Reads a command line, the program's name first.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, Failure> {
    let matches = Cli::command().try_get_matches_from(words)?;
    let mut command = Cli::from_arg_matches(&matches)?.command;
    let is_typed = matches.subcommand().is_some_and(|(_, matches)| {
        matches.try_contains_id("path").unwrap_or(false)
            && matches.value_source("path") == Some(ValueSource::CommandLine)
    });
    match &mut command {
        Command::Run(RunArgs { model, .. })
        | Command::Serve(ServeArgs { model, .. })
        | Command::Bench(BenchArgs { model, .. })
        | Command::Tokenize(TokenizeArgs { model, .. }) => model.is_typed = is_typed,
        Command::Ps(_) | Command::Policy(_) | Command::Doctor(_) | Command::Show(_) => {}
    }
    Ok(command)
}

impl GenerationArgs {
    /// Changes one setting by its flag's name, checked as the flag is; the error is one line.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let command = Self::augment_args(clap::Command::new("/set").no_binary_name(true))
            .disable_help_flag(true)
            .mut_args(|arg| arg.env(None).default_value(None));
        if !command.get_arguments().any(|known| known.get_long() == Some(name)) {
            return Err(format!("there is no setting {name}; /show lists them"));
        }
        command
            .try_get_matches_from([format!("--{name}={value}")])
            .and_then(|matches| self.update_from_arg_matches(&matches))
            .map_err(|error| {
                let text = error.render().to_string();
                let line = text.lines().next().unwrap_or_default();
                line.strip_prefix("error: ").unwrap_or(line).to_owned()
            })
    }

    /// Returns every setting's name and value, as people read them.
    pub(crate) fn list(&self) -> Vec<(&'static str, String)> {
        fn or_none<T: ToString>(value: Option<&T>, none: &str) -> String {
            value.map_or_else(|| none.to_owned(), T::to_string)
        }
        vec![
            ("temperature", or_none(self.temperature.as_ref(), "the model's default")),
            ("top-k", self.top_k.to_string()),
            ("top-p", self.top_p.to_string()),
            ("min-p", self.min_p.to_string()),
            ("repeat-penalty", self.repeat_penalty.to_string()),
            ("frequency-penalty", self.frequency_penalty.to_string()),
            ("presence-penalty", self.presence_penalty.to_string()),
            ("seed", or_none(self.seed.as_ref(), "another one each time")),
            ("max-tokens", or_none(self.max_tokens.as_ref(), "no limit")),
            (
                "stop",
                self.stop.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(" "),
            ),
            ("system", or_none(self.system.as_ref(), "")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory as _;

    use super::{Cli, Command, GenerationArgs, parse};

    fn generation(words: &[&str]) -> GenerationArgs {
        let words = ["toko", "run"].iter().chain(words).map(OsString::from);
        let Command::Run(args) = parse(words).unwrap() else { panic!("not run") };
        args.generation
    }

    fn refusal(words: &[&str]) -> String {
        let words = ["toko", "run"].iter().chain(words).map(OsString::from);
        parse(words).unwrap_err().to_string()
    }

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn values_outside_their_range_are_refused_with_the_range() {
        for (flag, value, range) in [
            ("--temperature", "2.1", "from 0 to 2"),
            ("--temperature", "-1", "from 0 to 2"),
            ("--temperature", "NaN", "from 0 to 2"),
            ("--top-k", "-1", "at least 0"),
            ("--top-p", "1.01", "from 0 to 1"),
            ("--min-p", "-0.1", "from 0 to 1"),
            ("--repeat-penalty", "0", "from 0.1 to 10"),
            ("--frequency-penalty", "-3", "from -2 to 2"),
            ("--presence-penalty", "3", "from -2 to 2"),
            ("--max-tokens", "0", "at least 1"),
            ("--ctx", "0", "at least 1"),
            ("--threads", "0", "from 1 to 1024"),
        ] {
            let message = refusal(&[flag, value]);
            assert!(message.contains(flag) && message.contains(range), "{message}");
        }
    }

    #[test]
    fn negative_penalties_need_no_equals_sign() {
        let penalty = generation(&["--presence-penalty", "-1.5"]).presence_penalty;
        assert_eq!(Some(penalty), Some(-1.5));
    }

    #[test]
    fn a_setting_changes_alone_and_only_to_what_the_flag_takes() {
        let mut settings = generation(&["--top-k", "7", "--temperature", "0.3"]);
        settings.set("temperature", "0.9").unwrap();
        settings.set("system", "--be brief").unwrap();
        assert_eq!((settings.temperature, settings.top_k), (Some(0.9), 7));
        assert_eq!(settings.system.as_deref(), Some("--be brief"));
        let problem = settings.set("temperature", "9").unwrap_err();
        assert!(problem.contains("must be a number from 0 to 2"), "{problem}");
        assert_eq!(problem.lines().count(), 1);
        assert_eq!(settings.temperature, Some(0.9));
    }

    #[test]
    fn an_unknown_setting_is_named() {
        let problem = generation(&[]).set("warmth", "1").unwrap_err();
        assert_eq!(problem, "there is no setting warmth; /show lists them");
    }

    #[test]
    fn the_list_names_every_setting() {
        let settings = generation(&[]);
        let command = <GenerationArgs as clap::Args>::augment_args(clap::Command::new("x"));
        let flags: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        let listed: Vec<_> = settings.list().into_iter().map(|(name, _)| name).collect();
        assert_eq!(listed, flags);
    }
}
