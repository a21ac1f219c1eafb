//! The user's choice of how much memory models may take, and the arithmetic from it to a ceiling.
//!
//! Invariant: no ceiling leaves less than the emergency reserve, and more memory never gives a smaller ceiling.
//! Knows neither where a policy is kept nor what is in use. "MB" is MiB here, and "GB" is 1,024 of them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// MB by which a custom ceiling can be chosen: half a GB.
pub const CUSTOM_STEP_MB: u64 = 512;

const EVERYDAY_PERCENT: u64 = 40;
const LOCAL_FOCUSED_PERCENT: u64 = 80;
const RESERVE_PERCENT: u64 = 10;
const LEAST_RESERVE_MB: u64 = 2048;
const MB_PER_GB: u64 = 1024;

/// Says why a policy is none.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A size that no custom ceiling can have.
    #[error(
        "a custom ceiling of {gigabytes} GB is impossible: it must be finite, not negative, a multiple of 0.5 GB, \
         and below 2^54 GB"
    )]
    CustomGigabytes {
        /// The size that was asked for.
        gigabytes: f64,
    },
    /// A custom ceiling between two steps.
    #[error("a custom ceiling of {mb} MB is impossible: it must be a multiple of 512 MB (0.5 GB)")]
    CustomStep {
        /// The ceiling in MB.
        mb: u64,
    },
    /// The profile `custom` without its ceiling.
    #[error("the profile Custom needs a ceiling: custom_max_model_mb is missing")]
    CustomMissing,
    /// Another profile with a custom ceiling.
    #[error(
        "the profile {profile:?} has its own ceiling: custom_max_model_mb must not be set, but is {mb}"
    )]
    CustomUnwanted {
        /// The profile.
        profile: Profile,
        /// The ceiling in MB that it must not have.
        mb: u64,
    },
    /// A name that no profile has in a document.
    #[error("there is no profile \"{name}\": it is everyday, local_focused or custom")]
    UnknownProfile {
        /// The name.
        name: String,
    },
    /// A text on the command line that is no policy.
    #[error(
        "\"{text}\" is no policy: write everyday, local-focused, or a size such as custom:12.5GB"
    )]
    Spelling {
        /// The text.
        text: String,
    },
}

/// How the ceiling is found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "String")]
pub enum Profile {
    /// Models take two fifths of the memory: the machine is mostly used for other things.
    #[default]
    Everyday,
    /// Models take four fifths of the memory.
    LocalFocused,
    /// Models take what the user says.
    Custom,
}

/// The user's choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// How the ceiling is found.
    pub profile: Profile,
    /// The ceiling in MB, of the profile `custom` and of no other.
    pub custom_max_model_mb: Option<u64>,
}

/// What a policy means on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveBudget {
    /// Memory of the machine.
    pub total_memory_mb: u64,
    /// What is never given to models.
    pub emergency_reserve_mb: u64,
    /// The most that all models together may take.
    pub configured_model_ceiling_mb: u64,
    /// The ceiling that a new load is held against; the configured one.
    pub effective_new_load_ceiling_mb: u64,
    /// Tells that a custom ceiling is larger than this machine allows, and what holds instead.
    pub normalization_notice: Option<String>,
}

/// What models may take of an accelerator's own memory: all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceleratorBudget {
    /// Memory of the accelerator.
    pub total_mb: u64,
    /// The most that models may take of it.
    pub budget_mb: u64,
}

/// What a policy means on a machine and its accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evaluation {
    /// What it means for the machine's memory.
    pub host_memory: EffectiveBudget,
    /// What it means for the accelerator's, where there is one with memory of its own.
    pub accelerator_memory: Option<AcceleratorBudget>,
}

impl Policy {
    /// Returns the policy of a machine that is mostly used for other things, which is the default.
    pub const fn everyday() -> Self {
        Self { profile: Profile::Everyday, custom_max_model_mb: None }
    }

    /// Returns the policy of a machine that is mostly used for models.
    pub const fn local_focused() -> Self {
        Self { profile: Profile::LocalFocused, custom_max_model_mb: None }
    }

    /// Returns the policy with a ceiling of some GB, which has to be a multiple of a half.
    pub fn custom_gb(gigabytes: f64) -> Result<Self, Error> {
        let refused = Error::CustomGigabytes { gigabytes };
        let steps = gigabytes * 2.0;
        // The first number of steps whose MB no longer fit into 64 bits.
        let too_many = 2_f64.powi(55);
        // Infinity has no fraction but NaN, which is no zero either.
        if steps.fract() != 0.0 || !(0.0..too_many).contains(&steps) {
            return Err(refused);
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number from 0 to 2^55 was made sure of"
        )]
        let steps = steps as u64;
        Ok(Self::custom_mb(steps * CUSTOM_STEP_MB))
    }

    /// Checks that the profile and the custom ceiling belong together.
    pub fn validate(&self) -> Result<(), Error> {
        match (self.profile, self.custom_max_model_mb) {
            (Profile::Custom, Some(mb)) if mb.is_multiple_of(CUSTOM_STEP_MB) => Ok(()),
            (Profile::Custom, Some(mb)) => Err(Error::CustomStep { mb }),
            (Profile::Custom, None) => Err(Error::CustomMissing),
            (_, None) => Ok(()),
            (profile, Some(mb)) => Err(Error::CustomUnwanted { profile, mb }),
        }
    }

    /// Returns what this means on a machine with `total_memory_mb`.
    pub fn effective_budget(&self, total_memory_mb: u64) -> EffectiveBudget {
        let reserve_mb = percent(total_memory_mb, RESERVE_PERCENT).max(LEAST_RESERVE_MB);
        // A machine smaller than the reserve has nothing to give, which is no negative amount.
        let safe_mb = total_memory_mb.saturating_sub(reserve_mb);
        let requested_mb = match self.profile {
            Profile::Everyday => percent(total_memory_mb, EVERYDAY_PERCENT),
            Profile::LocalFocused => percent(total_memory_mb, LOCAL_FOCUSED_PERCENT),
            Profile::Custom => self.custom_max_model_mb.unwrap_or(0),
        };
        let ceiling_mb = requested_mb.min(safe_mb);
        let is_cut = self.profile == Profile::Custom && requested_mb > safe_mb;
        EffectiveBudget {
            total_memory_mb,
            emergency_reserve_mb: reserve_mb,
            configured_model_ceiling_mb: ceiling_mb,
            effective_new_load_ceiling_mb: ceiling_mb,
            normalization_notice: is_cut.then(|| {
                format!(
                    "the saved ceiling of {requested_mb} MB is more than this machine can give: {ceiling_mb} MB hold, \
                     so that {reserve_mb} MB stay in reserve"
                )
            }),
        }
    }

    /// Returns what this means on a machine whose CUDA accelerator has `cuda_memory_mb`; `None` where there is no such
    /// accelerator or nobody knows how much it has.
    pub fn evaluate(&self, total_memory_mb: u64, cuda_memory_mb: Option<u64>) -> Evaluation {
        let accelerator =
            cuda_memory_mb.map(|mb| AcceleratorBudget { total_mb: mb, budget_mb: mb });
        Evaluation {
            host_memory: self.effective_budget(total_memory_mb),
            accelerator_memory: accelerator,
        }
    }

    /// Tells whether this is known to give at most what `other` gives, whatever the machine.
    pub fn is_within(&self, other: &Self) -> bool {
        let custom_mb = |policy: &Self| policy.custom_max_model_mb.unwrap_or(0);
        match (self.profile, other.profile) {
            (Profile::Custom, Profile::Custom) => custom_mb(self) <= custom_mb(other),
            (Profile::Custom, _) => custom_mb(self) == 0,
            (_, Profile::Custom) | (Profile::LocalFocused, Profile::Everyday) => false,
            (Profile::Everyday, _) | (Profile::LocalFocused, Profile::LocalFocused) => true,
        }
    }

    const fn custom_mb(mb: u64) -> Self {
        Self { profile: Profile::Custom, custom_max_model_mb: Some(mb) }
    }
}

impl FromStr for Policy {
    type Err = Error;

    /// Reads what is written on a command line: `everyday`, `local-focused`, `custom:12.5GB` or `custom:512MB`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let spelling = || Error::Spelling { text: text.to_owned() };
        let size = match text.trim() {
            "everyday" => return Ok(Self::everyday()),
            "local-focused" | "local_focused" => return Ok(Self::local_focused()),
            other => other.strip_prefix("custom:").ok_or_else(spelling)?,
        };
        let unit_at = size.len().checked_sub(2).and_then(|at| size.split_at_checked(at));
        let (number, unit) = unit_at.ok_or_else(spelling)?;
        let number = number.trim();
        match unit.to_ascii_lowercase().as_str() {
            "gb" => Self::custom_gb(number.parse().map_err(|_| spelling())?),
            "mb" => {
                let policy = Self::custom_mb(number.parse().map_err(|_| spelling())?);
                policy.validate().map(|()| policy)
            }
            _ => Err(spelling()),
        }
    }
}

impl fmt::Display for Policy {
    /// Writes what [`Policy::from_str`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // From here on halves of a GB are lost in a 64-bit float.
        const LARGEST_MB: u64 = 1 << 62;
        match (self.profile, self.custom_max_model_mb.unwrap_or(0)) {
            (Profile::Everyday, _) => f.write_str("everyday"),
            (Profile::LocalFocused, _) => f.write_str("local-focused"),
            (Profile::Custom, mb) if mb >= LARGEST_MB || !mb.is_multiple_of(CUSTOM_STEP_MB) => {
                write!(f, "custom:{mb}MB")
            }
            (Profile::Custom, mb) => {
                let half = if mb.is_multiple_of(MB_PER_GB) { "" } else { ".5" };
                write!(f, "custom:{}{half}GB", mb / MB_PER_GB)
            }
        }
    }
}

impl TryFrom<String> for Profile {
    type Error = Error;

    /// Reads the name that a document has for a profile.
    fn try_from(name: String) -> Result<Self, Error> {
        match name.as_str() {
            "everyday" => Ok(Self::Everyday),
            "local_focused" => Ok(Self::LocalFocused),
            "custom" => Ok(Self::Custom),
            _ => Err(Error::UnknownProfile { name }),
        }
    }
}

impl EffectiveBudget {
    /// Returns the most that models may take when one more is loaded.
    pub const fn new_load_ceiling(&self) -> Bytes {
        Bytes::from_mib(self.effective_new_load_ceiling_mb)
    }

    /// Returns what is never given to models.
    pub const fn emergency_reserve(&self) -> Bytes {
        Bytes::from_mib(self.emergency_reserve_mb)
    }
}

fn percent(total: u64, percent: u64) -> u64 {
    let part = u128::from(total) * u128::from(percent.min(100)) / 100;
    u64::try_from(part).expect("a part of a 64-bit number has at most 64 bits")
}
