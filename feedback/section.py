"""What every part of the agent file is: frozen, without unknown keys, and every number finite."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
