//! Runs benchmarks of `bottle`. Most of them compare `bottle` with another tool that does the same work.
//!
//! `cargo bench --bench side-by-side` runs all benchmarks, and `-- NAME…` selects some of them.
#![allow(clippy::print_stdout, missing_docs, reason = "a bench prints its measurements")]

mod archive;
mod commands;
mod commit;
mod drive;
mod engine;
mod image;
mod many;
mod memory;
mod processes;
mod repository;
mod sandbox;
mod scene;
mod start;

use anyhow::{Result, bail};

/// The name of a benchmark, its description, and the function that runs it.
type Bench = (&'static str, &'static str, fn() -> Result<()>);

const BENCHES: [Bench; 11] = [
    ("sandbox", "the sandbox alone, against bwrap", sandbox::run),
    ("start", "bottle start to agent process", start::run),
    ("commands", "commands that a user waits for", commands::run),
    ("drive", "requests to a bottle that runs", drive::run),
    ("memory", "what one idle bottle holds", memory::run),
    ("commit", "a commit of a large home, and back", commit::run),
    ("repository", "a bottle with a copy of a large repository, against cp -r", repository::run),
    ("archive", "export and import, against tar and zstd", archive::run),
    ("image", "a bottle in an image, against one on the host's system", image::run),
    ("engine", "bottles on a container engine, against the engine alone", engine::run),
    ("many", "two hundred bottles at once", many::run),
];

fn main() -> Result<()> {
    // Skips the option `--bench`, which Cargo adds.
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if let Some(unknown) = wanted.iter().find(|name| !BENCHES.iter().any(|(known, ..)| known == name)) {
        let known = BENCHES.map(|(name, ..)| name).join(", ");
        bail!("there is no bench {unknown:?}; there are {known}");
    }
    for (name, what, run) in BENCHES {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            println!("\n{name}: {what}");
            run()?;
        }
    }
    Ok(())
}
