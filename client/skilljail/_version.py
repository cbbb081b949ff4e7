"""The version of the distribution, `skilljail` and `skilljaild` alike."""

__all__ = ["__version__"]

__version__ = "0.1.0"
