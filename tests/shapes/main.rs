//! Tests a table of repository shapes. In each shape, an agent does the same work. Each command that brings the work to
//! the user must have the same effect as plain git in a copy of the repository, byte by byte and mode by mode.
//!
//! - `shapes`: the shapes · `place`: makes each shape for the user, and for the twin, in which plain git works
//! - `flow`: the commands, and what they may change · `tree`: the files of a directory, to compare them
//!
//! A sample runs by default. `.ci/run shapes`, which is a part of `.ci/run nightly`, runs the whole table.
//! `BOTTLE_TEST_SHAPES=NAME,NAME` selects shapes for the whole table, and `BOTTLE_TEST_BACKENDS=NAME` selects a
//! backend.

mod flow;
mod place;
mod shapes;
mod tree;

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use bottle_test_support::repository_kinds::each;

use crate::flow::{Case, Mode, Scene};
use crate::shapes::SHAPES;

/// The number of cases that are tested at the same time.
const THREADS: usize = 3;

/// The environment variables that select shapes and backends.
const SELECTED: &str = "BOTTLE_TEST_SHAPES";
const BACKENDS: &str = "BOTTLE_TEST_BACKENDS";

/// The cases of the sample, which runs for at most a minute.
const SAMPLE: [(&str, Mode); 20] = [
    ("plain", Mode::Live),
    ("subdirectory", Mode::Copy),
    ("bare-layout", Mode::Copy),
    ("linked-worktree", Mode::Copy),
    ("sha256", Mode::Live),
    ("attributes", Mode::Copy),
    ("nested-changed", Mode::Copy),
    ("sparse", Mode::Copy),
    ("partial", Mode::Copy),
    ("lfs", Mode::Copy),
    ("line-endings", Mode::Copy),
    ("merge", Mode::Copy),
    ("unborn", Mode::Copy),
    ("unborn", Mode::Live),
    ("no-git", Mode::Copy),
    ("no-git", Mode::Live),
    ("odd-names", Mode::Copy),
    ("submodule-committed", Mode::Copy),
    ("tracked-and-ignored", Mode::Copy),
    ("permissions", Mode::Copy),
];

/// The cases of the table. A backend of containers cannot mount every directory, so `live` is tested on Linux only.
fn cases(backends: &[&'static str]) -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in SHAPES {
        for backend in backends {
            cases.push(Case { shape, mode: Mode::Copy, backend });
            if shape.can_be_live && *backend == "linux" {
                cases.push(Case { shape, mode: Mode::Live, backend });
            }
        }
    }
    cases
}

/// Runs cases. No cell may fail.
fn run(scene: &Scene, cases: &[Case]) -> Result<()> {
    each(cases.len(), THREADS, |number| {
        let case = cases[number];
        let failed = scene.test(case)?.into_iter().filter_map(|(cell, failed)| Some((cell, failed?)));
        let wrong: Vec<String> =
            failed.map(|(cell, why)| format!("{} {cell:?} fails: {why}", case.name())).collect();
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    })
}

#[test]
fn a_sample_of_shapes_behaves_as_in_plain_git() -> Result<()> {
    let test = "a_sample_of_shapes_behaves_as_in_plain_git";
    let Some((scene, _)) = Scene::new(test, &["linux"])? else { return Ok(()) };
    let is_sampled = |case: &Case| SAMPLE.contains(&(case.shape.name, case.mode));
    let sample: Vec<Case> = cases(&["linux"]).into_iter().filter(is_sampled).collect();
    assert_eq!(sample.len(), SAMPLE.len(), "a case of the sample has another name");
    run(&scene, &sample)
}

#[test]
#[ignore = "takes long: `.ci/run shapes`"]
fn all_shapes_behave_as_in_plain_git() -> Result<()> {
    let test = "all_shapes_behave_as_in_plain_git";
    let is_selected = |variable: &str, name: &str| {
        std::env::var(variable).map_or(true, |selected| selected.split(',').any(|selected| selected == name))
    };
    let mut backends = vec!["linux", "docker"];
    backends.retain(|backend| is_selected(BACKENDS, backend));
    let Some((scene, backends)) = Scene::new(test, &backends)? else { return Ok(()) };
    let mut cases = cases(&backends);
    cases.retain(|case| is_selected(SELECTED, case.shape.name));
    ensure!(!cases.is_empty(), "{SELECTED} names no shape");
    run(&scene, &cases)
}

#[test]
fn shapes_have_different_names() {
    let names: BTreeSet<&str> = SHAPES.iter().map(|shape| shape.name).collect();
    assert_eq!(names.len(), SHAPES.len());
    assert!(names.len() >= 40, "{}", names.len());
}
