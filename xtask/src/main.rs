//! Build steps that cargo does not provide. `cargo xtask` lists these steps.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the user at the terminal")]

mod bench;
mod broken;
mod circles;
mod coverage;
mod dist;
// `bottle` uses the same rules to check the program that it puts into containers.
#[path = "../../crates/backend/src/elf.rs"]
#[allow(dead_code, reason = "the product asks more of it")]
mod elf;
#[cfg(test)]
mod ignored;
mod layers;
mod reads;
mod rooms;
mod sources;
#[cfg(test)]
mod supply_chain;
#[cfg(test)]
mod temporary;

use std::process::ExitCode;

const HELP: &str = "\
Build steps of bottle.

Usage: cargo xtask <STEP>

Steps:
  dist [--target x86_64|aarch64] build the one static program and write it to dist/bottle; for another
                                 processor than this machine's, to dist/bottle-amd64 or dist/bottle-arm64
  bench [--record] [NAME...]     run the benchmarks that compare with something else, and refuse a ratio that fell
                                 by more than 10 % against benches/history.tsv
  broken [--together] [NAME...]  take defences out of a copy, and see the tests notice
  coverage REPORT                print the share of lines that tests cover, and refuse too low a one
  layers                         print which package depends on which, and refuse circles of imports between
                                 files
  reads                          refuse code that reads by path or starts programs in places that are not known
  help                           this text
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let step: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match step.as_slice() {
        [] | ["help" | "-h" | "--help"] => {
            print!("{HELP}");
            Ok(())
        }
        ["dist"] => dist::run(None),
        ["dist", "--target", processor] => dist::run(Some(processor)),
        ["coverage", report] => coverage::run(report),
        ["layers"] => layers::run(),
        ["reads"] => reads::run(),
        ["bench", arguments @ ..] => bench::run(arguments),
        ["broken", arguments @ ..] => broken::run(arguments),
        _ => {
            eprintln!("xtask: there is no step {:?}\n\n{HELP}", step.join(" "));
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
