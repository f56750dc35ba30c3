//! The `wsm` command. All of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    wsm_app::cli::main(std::env::args_os())
}
