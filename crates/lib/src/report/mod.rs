//! The JSON output that scripts rely on. A later version may add fields, but does not remove or rename any field.

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

pub use bottles::{
    ActiveBottle, CleanupReport, Discarded, Leftover, ListedEnvironment, PruneReport, PrunedRecord,
    RemovedEnvironment, Stopped, kept_word,
};
pub use checks::{BackendHealth, NamedManifest, ProbeAttempt};
pub use files::{
    FileContent, FileDocument, FileEntries, FileEntry, FileEntryPath, FileLines, FileMatch, FileMatches,
    ImportedFiles, PatchedFile, PatchedFiles, RemovedFiles, ResetFile, ResetFiles, WrittenFile,
};
pub use launch::{DryRun, SecretUse};
pub use processes::{
    BottleProcess, BottleService, Executed, ExecutedOutput, MatchedLine, ProcessEnd, ProcessOutput,
    StartedProcess, WaitedProcess,
};
pub use rules::{
    ChangedVerdict, PolicyAnswer, RecordedVerdict, Replayed, RuleAnswer, RuleApproval, RuleFinding,
    RuleOverview, RuleShown,
};
pub use servers::{McpServer, McpToken, WebDashboard};
pub use snapshots::{Committed, Exported, FoundSecret, Imported, ListedSnapshot, SignedBy};
pub use supervise::{
    Answered, AuditLine, ChangedRoutes, Credential, LearnReport, LearntHost, LeftOut, Question,
    ReplacedCredentials, UnsavedManifest, VerifiedLog,
};
pub use usage::{BudgetLine, Money, UsageGroup, UsageRecord};
pub use work::{Applied, ComparedDirectory, Conflict, Difference, OneOrSeveral, Pulled};
