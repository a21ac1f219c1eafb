//! The `toko` command: reads the command line, runs one command, decides the exit code.
//!
//! Knows no model and no file format; everything that prints is in `output`.
#![forbid(unsafe_code)]

mod access;
mod args;
mod commands;
mod config;
mod failure;
mod memory;
mod model_source;
mod number;
mod output;
mod refusal;
mod session;
mod shell;
mod size;

use std::process::ExitCode;

use args::Command;
use output::Output;

fn main() -> ExitCode {
    output::report_panics_in_one_line();
    output::log_to_standard_error();
    let output = Output::detect();
    let ended = run(output).map_err(|error| refusal::with_command(error, std::env::args_os()));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::report_error(&error);
            ExitCode::from(failure::exit_code(&error))
        }
    }
}

fn run(output: Output) -> anyhow::Result<()> {
    match args::parse(std::env::args_os())? {
        Command::Run(args) => commands::run::run(args, output),
        Command::Serve(args) => commands::serve::serve(&args),
        Command::Ps(args) => commands::ps::ps(&args, output),
        Command::Policy(args) => commands::policy::policy(&args.command, output),
        Command::Doctor(args) => commands::doctor::doctor(&args, output),
        Command::Show(args) => commands::show::show(&args, output),
        Command::Bench(args) => commands::bench::bench(args, output),
        Command::Tokenize(args) => commands::tokenize::tokenize(&args, output),
    }
}
