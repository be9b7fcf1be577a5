"""Pictures of what a method sees and makes."""
