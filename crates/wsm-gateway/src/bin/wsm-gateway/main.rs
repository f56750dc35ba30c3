//! The gateway as a program: the first process of a sandbox, or any other one inside of it.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to who started it")]

mod args;
mod call;
mod channel;
mod door;
mod file_args;
mod files;
mod footprint;
mod inherited;
mod orphans;
mod port;
mod relay;
mod serve;
mod unroute;

use std::process::ExitCode;

use args::{Action, USAGE};

/// The command line can not be understood.
const USAGE_ERROR: u8 = 2;
/// Somebody else has the port: the number of the system's error.
const PORT_TAKEN: u8 = 98;

fn main() -> ExitCode {
    let action = match args::parse(std::env::args_os().skip(1)) {
        Ok(action) => action,
        Err(problem) => {
            eprintln!("wsm-gateway: {problem}\n\n{USAGE}");
            return ExitCode::from(USAGE_ERROR);
        }
    };
    match action {
        Action::Help => println!("{USAGE}"),
        Action::Version => {
            println!("wsm-gateway {} (protocol {})", env!("CARGO_PKG_VERSION"), wsm_gateway::PROTOCOL_VERSION);
        }
        Action::Serve(options) => return ended(serve::serve(options)),
        Action::Call(socket) => return ended(call::call(socket)),
        Action::Relay(socket) => return ended(relay::relay(&socket)),
        Action::Unroute(addresses) => return ended(unroute::unroute(&addresses)),
        Action::Files(action, json) => return ended(files::run(action, json)),
    }
    ExitCode::SUCCESS
}

fn ended(result: wsm_core::Result<()>) -> ExitCode {
    if let Err(error) = result {
        eprintln!("wsm-gateway: {}", error.report());
        return if error.code() == port::PORT_IN_USE { PORT_TAKEN.into() } else { ExitCode::FAILURE };
    }
    ExitCode::SUCCESS
}
