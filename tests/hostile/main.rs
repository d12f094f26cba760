//! Runs the commands that read repositories on repositories that a hostile project or agent could make.
//!
//! Every command has to answer within [`flow::ANSWERS_WITHIN`] and [`flow::MEMORY`], whatever the answer is. No program
//! that a repository names may run outside of a bottle, and nothing outside of the project may get into a bottle or the
//! output.
//!
//! - `keys`: each configuration key of git's manual that can name a program, a file or a URL
//! - `files`: each file of a git directory as a link, a named pipe, a device, huge, or malformed
//! - `shapes`: git files, worktrees, submodules, alternates, bare repositories, reftables, promisors, includes
//! - `place`: the directory of a case, with its traps · `flow`: the commands, and what they must not do
//!
//! A sample runs by default. `.ci/run hostile`, which is a part of `.ci/run nightly`, runs all cases.

mod files;
mod flow;
mod keys;
mod place;
mod shapes;

use anyhow::Result;
use bottle_test_support::repository_kinds::each;

use crate::flow::Scene;
use crate::place::Place;

/// Makes a repository in an empty directory. If this machine cannot make the repository, returns the reason.
type Make = Box<dyn Fn(&Place) -> Result<Option<String>> + Send + Sync>;

/// A case, which is a hostile repository.
struct Case {
    name: String,
    make: Make,
}

impl Case {
    fn new(name: impl Into<String>, make: impl Fn(&Place) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { name: name.into(), make: Box::new(move |place| make(place).map(|()| None)) }
    }
}

/// The number of cases that are tested at the same time.
const THREADS: usize = 3;

/// The cases of the sample: the cases that combine the most attacks, and one case of each kind of attack.
const SAMPLE: [&str; 14] = [
    "all-keys",
    "hooks",
    "git-file-home",
    "git-file-victim",
    "git-link-home",
    "common-directory",
    "forged-worktree",
    "alternates",
    "promisor",
    "include",
    "HEAD-pipe",
    "exclude-zero",
    "config-huge",
    "gitignore-pipe",
];

fn cases() -> Vec<Case> {
    let mut cases = shapes::cases();
    cases.extend(files::cases());
    cases.extend(keys::cases());
    cases
}

fn run(cases: &[Case], test: &str) -> Result<()> {
    let Some(scene) = Scene::new(test)? else { return Ok(()) };
    each(cases.len(), THREADS, |number| scene.test(&cases[number]))
}

#[test]
fn a_sample_of_hostile_repositories_does_nothing() -> Result<()> {
    let sample: Vec<Case> = cases().into_iter().filter(|case| SAMPLE.contains(&case.name.as_str())).collect();
    assert_eq!(sample.len(), SAMPLE.len(), "a case of the sample has another name");
    run(&sample, "a_sample_of_hostile_repositories_does_nothing")
}

#[test]
#[ignore = "takes 20 minutes: `.ci/run hostile`"]
fn all_hostile_repositories_do_nothing() -> Result<()> {
    let cases = cases();
    assert!(cases.len() >= 100, "{}", cases.len());
    run(&cases, "all_hostile_repositories_do_nothing")
}

/// Checks that the traps work. Without working traps, the other tests would prove nothing.
#[test]
fn a_harmless_repository_is_copied_compared_and_pulled() -> Result<()> {
    let test = "a_harmless_repository_is_copied_compared_and_pulled";
    let Some(scene) = Scene::new(test)? else { return Ok(()) };
    scene.harmless()
}

#[test]
fn case_names_are_different() {
    let mut names: Vec<String> = cases().into_iter().map(|case| case.name).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}
