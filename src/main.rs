//! The one program: by its first argument a guest, a bundle, a keeper, or the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    bottle::cli::run(std::env::args_os())
}
