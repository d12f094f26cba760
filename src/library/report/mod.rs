//! The JSON output that scripts rely on. A later version may add fields, but does not remove or rename any.

mod bottles;
mod checks;
mod files;
mod launch;
mod processes;
mod rules;
mod servers;
mod snapshots;
mod supervise;
mod usage;
mod work;

pub(crate) use bottles::{
    ActiveBottle, CleanupReport, Discarded, Leftover, ListedEnvironment, PruneReport, PrunedRecord,
    RemovedEnvironment, Stopped, kept_word,
};
pub(crate) use checks::{BackendHealth, NamedManifest, ProbeAttempt};
pub(crate) use files::{
    FileContent, FileEntries, FileEntry, FileEntryPath, FileMatch, FileMatches, ImportedFiles, PatchedFile,
    PatchedFiles, RemovedFiles, ResetFile, ResetFiles, WrittenFile,
};
pub(crate) use launch::{DryRun, SecretUse};
pub(crate) use processes::{
    BottleProcess, BottleService, Executed, ExecutedOutput, MatchedLine, ProcessEnd, ProcessOutput,
    StartedProcess,
};
pub(crate) use rules::{PolicyAnswer, RuleAnswer, RuleApproval, RuleFinding, RuleOverview, RuleShown};
pub(crate) use servers::{McpServer, McpToken, WebDashboard};
pub(crate) use snapshots::{Committed, Exported, FoundSecret, Imported, ListedSnapshot, SignedBy};
pub(crate) use supervise::{
    Answered, AuditLine, ChangedRoutes, LearnReport, LearntHost, LeftOut, Question, UnsavedManifest,
    VerifiedLog,
};
pub(crate) use usage::{BudgetLine, Money, UsageGroup, UsageRecord};
pub(crate) use work::{Applied, ComparedDirectory, Conflict, Difference, OneOrSeveral, Pulled};
